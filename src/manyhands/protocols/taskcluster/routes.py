"""The endpoints of the Taskcluster queue's REST API, below /0.2.0."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import replace

from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.protocols.taskcluster import answers, rest
from manyhands.protocols.taskcluster.documents import RUN, Documents
from manyhands.protocols.taskcluster.endpoint import Endpoint
from manyhands.protocols.taskcluster.messages import VERSION
from manyhands.protocols.taskcluster.tasks import WAIT_SECONDS_MAX, Tasks
from manyhands.protocols.taskcluster.uploads import Uploads
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import ONCE, ONCE_ERRORS
from manyhands.web.openapi import ENVELOPED, Api, Errors
from manyhands.web.routes import Further, Parameter, Route, bind

_Word = Annotated[str, Meta(min_length=1, max_length=36)]
_Name = Annotated[str, Meta(min_length=1)]
_Document = dict[str, Any]
_WAIT_FOR_WORK: Final = Parameter(
    "wait",
    Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)],
    "Maximum seconds to wait for work.",
)
_WORKER: Final = (Parameter("worker_group", _Word), Parameter("worker_id", _Word))
_SIGNED: Final = (
    Parameter("key", str, "The signature."),
    Parameter("type", str, "The content type."),
)
_NOTHING_TO_DO: Final = {204: Further("There is no work; see Retry-After.")}
_PART: Final = {206: Further("The requested part.", bytes, "application/octet-stream")}


def _route(route: str, handler: Any, summary: str, answer: Any, **more: Any) -> Route:  # noqa: ANN401
    method, path = route.split()
    return Route(method, f"/{VERSION}{path}", handler, summary, "taskcluster", answer, **more)


_TASK_ROUTES: Final = (
    _route(
        "POST /task/new",
        Tasks.new,
        "Submit a task.",
        answers.Shown,
        body=rest.Definition,
        query=(ONCE,),
        errors=ONCE_ERRORS,
    ),
    _route("GET /task/{task}/status", Tasks.status, "The status of a task.", answers.Shown),
    _route(
        "POST /task/{task}/claim",
        Tasks.claim,
        "Claim a task or, with run_id, reclaim it.",
        answers.Claimed,
        body=rest.Worker,
    ),
    # Workers of that time send a body with GET; others use POST or parameters.
    _route(
        "GET /task/{task}/artifact-urls",
        Tasks.artifact_urls,
        "Where to upload artifacts; GET with a body, for old workers.",
        answers.ArtifactUrls,
    ),
    _route(
        "POST /task/{task}/artifact-urls",
        Tasks.artifact_urls,
        "Where to upload artifacts.",
        answers.ArtifactUrls,
        body=rest.ArtifactsWanted,
    ),
    _route(
        "POST /task/{task}/completed",
        Tasks.completed,
        "Report a completed run.",
        answers.Shown,
        body=rest.Worker,
    ),
    _route(
        "POST /task/{task}/failed",
        Tasks.failed,
        "Report that no run of a task can succeed.",
        answers.Shown,
        body=rest.FailedRun,
    ),
    _route("POST /task/{task}/cancel", Tasks.cancel, "Cancel a task.", answers.Shown),
    _route(
        "GET /claim-work/{provisioner}/{worker_type}",
        Tasks.claim_work,
        "Claim work.",
        answers.Claimed,
        query=(*_WORKER, _WAIT_FOR_WORK),
        further=_NOTHING_TO_DO,
    ),
    _route(
        "POST /claim-work/{provisioner}/{worker_type}",
        Tasks.claim_work,
        "Claim work; safer than GET.",
        answers.Claimed,
        body=rest.Worker,
        query=(_WAIT_FOR_WORK,),
        further=_NOTHING_TO_DO,
    ),
    _route("GET /pending-tasks/{provisioner}", Tasks.pending, "Pending tasks.", answers.Pending),
)
_DOCUMENT_ROUTES: Final = (
    _route(
        "GET /settings/amqp-connection-string", Documents.amqp, "Where events are.", answers.Broker
    ),
    _route(
        "GET /schemas/{name}", Documents.schema, "A schema of messages or documents.", _Document
    ),
    _route(
        "GET /asyncapi.json",
        Documents.asyncapi,
        "The messages, as an AsyncAPI document.",
        _Document,
    ),
    _route(
        "GET /store/{task}/task.json",
        Documents.definition,
        "The definition as posted, or one made up for the job.",
        rest.Definition,
    ),
    _route(
        "GET /store/{task}/resolution.json",
        Documents.resolution,
        "How it ended.",
        answers.Resolution,
    ),
    _route(f"GET {RUN}/logs.json", Documents.logs, "Where the logs of a run are.", _Document),
    _route(f"GET {RUN}/result.json", Documents.result, "The result of a run.", _Document),
    _route(f"GET {RUN}/results.json", Documents.result, "The same, under its old name.", _Document),
    _route(
        f"GET {RUN}/artifacts/{{name:path}}",
        Documents.artifact,
        "An artifact, or a range of it.",
        bytes,
        media="application/octet-stream",
        further=_PART,
    ),
    *(
        _route(
            f"PUT {RUN}/{name}",
            Documents.upload,
            "Upload to a signed URL.",
            answers.Uploaded,
            query=_SIGNED,
        )
        for name in (
            *("logs.json", "result.json", "results.json"),
            *("artifacts/{name:path}", "{name:path}"),
        )
    ),
)
API: Final = Api(
    "The Taskcluster queue",
    "Task",
    (*_TASK_ROUTES, *_DOCUMENT_ROUTES),
    {"taskcluster": "Tasks"},
    {
        "task": _Name,
        "provisioner": _Word,
        "worker_type": _Word,
        "run": Annotated[int, Meta(ge=1, le=999)],
        "name": _Name,
    },
    Errors(
        "TaskError",
        answers.TaskError,
        {
            **ENVELOPED.sentences,
            403: "The URL was not issued to the worker of this run.",
            404: "There is no such task, or it is resolved.",
            410: "The run is over, or belongs to another worker.",
            416: "The range is beyond the end of the artifact.",
            507: "The disk is nearly full.",
        },
    ),
)


class TaskclusterRoutes:
    """Binds the endpoints to a server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        config: Config,
        addresses: Mapping[str, str | None],
        handing_out: HandingOut,
    ) -> None:
        uploads = Uploads(dispatcher, config, addresses)
        self._tasks = Tasks(dispatcher, ids, config, handing_out, uploads)
        self._documents = Documents(dispatcher, config, addresses, uploads)

    def routes(self) -> Iterable[Route]:
        """The routes to serve."""
        bound = (*bind(_TASK_ROUTES, self._tasks), *bind(_DOCUMENT_ROUTES, self._documents))
        for route in bound:
            yield replace(route, handler=Endpoint(route.handler))
