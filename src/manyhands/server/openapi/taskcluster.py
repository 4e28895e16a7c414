"""The operations of the Taskcluster queue's API: bare JSON, with a message where it failed."""

from typing import Any, Final

from manyhands.protocols.taskcluster import messages, rest
from manyhands.server.openapi.words import (
    ERRORS,
    OBJECT,
    Api,
    Operation,
    Schema,
    array,
    number,
    read_shapes,
    record,
    ref,
    text,
    whole,
)

_PREFIX: Final = "Task"
_kinds: Final = (messages.Status, rest.Definition, rest.Worker, rest.ArtifactsWanted)
_SCHEMAS: Final = read_shapes(_kinds, _PREFIX)
_SCHEMAS["TaskError"] = record("message", message=text(), error=text())
_ERROR: Final[Schema] = ref("TaskError")
_ERRORS: Final = {
    **ERRORS,
    403: "The URL is not one that was given to the worker of this run.",
    404: "There is no such task, or it is resolved.",
    410: "The run is over, or another worker's.",
    416: "There are fewer bytes.",
    507: "The disk is nearly full.",
}
_STATUS: Final = record("status", status=ref("TaskStatus"))
_CLAIMED: Final = record(
    "status run_id worker_group worker_id logs_url result_url",
    status=ref("TaskStatus"),
    run_id=whole(minimum=1),
    worker_group=text(),
    worker_id=text(),
    logs_url=text(),
    result_url=text(),
)
_URLS: Final = record(
    "status run_id expires artifact_urls",
    status=ref("TaskStatus"),
    run_id=whole(minimum=1),
    expires=text(),
    artifact_urls={"type": "object", "additionalProperties": text()},
)
_RUN: Final = "store/{task}/runs/{run}"


def _one(
    route: str,
    summary: str,
    answer: Schema,
    read: Any = None,  # noqa: ANN401 - any structure
    query: str = "",
    **more: Any,  # noqa: ANN401
) -> Operation:
    method, path = route.split()
    return Operation(
        method,
        f"/{messages.VERSION}/{path}",
        summary,
        answer,
        "taskcluster",
        None if read is None else ref(_PREFIX + read.__name__),
        query,
        error=_ERROR,
        errors=_ERRORS,
        **more,
    )


_NO_WORK: Final = {204: "There is no work; see Retry-After."}
_PART: Final = {206: "The part that was asked for."}
_UPLOADED: Final = record("name", name=text())

_OPERATIONS: Final[tuple[Operation, ...]] = (
    _one("post task/new", "Submit a task.", _STATUS, rest.Definition),
    _one("get task/{task}/status", "How it is.", _STATUS),
    _one("post task/{task}/claim", "Claim it, or with run_id reclaim.", _CLAIMED, rest.Worker),
    _one("get task/{task}/artifact-urls", "The same with a body, as old workers ask.", _URLS),
    _one(
        "post task/{task}/artifact-urls",
        "Where to upload artifacts to.",
        _URLS,
        rest.ArtifactsWanted,
    ),
    _one("post task/{task}/completed", "A run is complete.", _STATUS, rest.Worker),
    _one("post task/{task}/failed", "No run of it can succeed.", _STATUS, rest.Worker),
    _one("post task/{task}/cancel", "Cancel it.", _STATUS),
    _one(
        "get claim-work/{provisioner}/{worker_type}",
        "Work for a worker.",
        _CLAIMED,
        query="worker_group worker_id wait",
        further=_NO_WORK,
    ),
    _one(
        "post claim-work/{provisioner}/{worker_type}",
        "The same, the safe way.",
        _CLAIMED,
        rest.Worker,
        "wait",
        further=_NO_WORK,
    ),
    _one(
        "get pending-tasks/{provisioner}",
        "Tasks that wait.",
        record("tasks", tasks=array(ref("TaskStatus"))),
    ),
    _one("get settings/amqp-connection-string", "Where events are.", record("url", url=text())),
    _one("get schemas/{name}", "A schema of messages or documents.", OBJECT),
    _one("get asyncapi.json", "The messages, as an AsyncAPI document.", OBJECT),
    _one("get store/{task}/task.json", "The definition as it was posted.", OBJECT),
    _one("get store/{task}/resolution.json", "How it ended.", OBJECT),
    _one(f"get {_RUN}/logs.json", "Where the logs of a run are.", OBJECT),
    _one(f"get {_RUN}/result.json", "The result of a run.", OBJECT),
    _one(f"get {_RUN}/results.json", "The same by its first name.", OBJECT),
    _one(
        f"get {_RUN}/artifacts/{{name}}",
        "An artifact, or a range of it.",
        text(),
        kind="application/octet-stream",
        further=_PART,
    ),
    *(
        _one(f"put {_RUN}/{name}", "Upload to a signed URL.", _UPLOADED, query="key type")
        for name in ("{name}", "logs.json", "result.json", "results.json", "artifacts/{name}")
    ),
)
_WORD: Final = text(minLength=1, maxLength=36)
_PARAMETERS: Final[dict[str, Schema]] = {
    "task": text(minLength=1),
    "provisioner": _WORD,
    "worker_type": _WORD,
    "worker_group": _WORD,
    "worker_id": _WORD,
    "wait": number(minimum=0, maximum=20),
    "run": whole(minimum=1, maximum=999),
    "name": text(minLength=1),
    "key": text(),
    "type": text(),
}
API: Final = Api(
    "The Taskcluster queue", _OPERATIONS, _PARAMETERS, _SCHEMAS, {"taskcluster": "Tasks"}
)
