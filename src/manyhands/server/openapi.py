"""The OpenAPI document of the qless API, and a page for people who read it."""

import html
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from manyhands import __version__
from manyhands.server.openapi_schemas import (
    FLAG,
    ID,
    ID_OR_FALSE,
    IDS,
    SCHEMAS,
    SECONDS,
    TAGS,
    Schema,
    array,
    maybe,
    number,
    record,
    ref,
    text,
    whole,
)

_QUEUE_SEGMENT: Final = text(pattern="^[A-Za-z0-9_-]{1,100}$")
_WORD: Final = text(pattern="^[A-Za-z0-9_-]{1,100}$")
_ERRORS: Final = {
    400: "Something in the request is wrong.",
    403: "A page of another site made the browser ask.",
    404: "There is no such thing.",
    405: "The method is not possible here; see Allow.",
    409: "It does not fit what is so now.",
    413: "Too large.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    429: "Too much; see Retry-After.",
    500: "A defect; the log has the request's id.",
    503: "Starting, stopping, or the disk is full; see Retry-After.",
}


class Operation(NamedTuple):
    """One route with one method."""

    method: str
    path: str
    summary: str
    results: Schema
    data: Schema | None = None
    query: str = ""
    tag: str = "work"


_TAKEN: Final[Schema] = {"anyOf": [ref("Item"), array(ref("Item")), {"type": "null"}]}
_PAGE: Final = "order after count"
_TAKE: Final = "wait host array"
_TAKE_DATA: Final = record("", wait=number(minimum=0, maximum=0.05), array=FLAG)
_NAMES: Final = array(_WORD)


def _each(**properties: Schema) -> Schema:
    required = " ".join(key for key in ("id", "queue", "priority", "data") if key in properties)
    return array(record(required, **properties))


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("get", "/get/{queue}", "Take one item of work.", _TAKEN, query=_TAKE),
    Operation("post", "/get/{queue}", "The same, the safe way.", _TAKEN, _TAKE_DATA),
    Operation("get", "/get/{queue}/{count}", "Take several items.", _TAKEN, query=_TAKE),
    Operation("post", "/get/{queue}/{count}", "The same, the safe way.", _TAKEN, _TAKE_DATA),
    Operation(
        "post",
        "/heartbeat/{queue}",
        "Renew locks: seconds until the next time, or false.",
        array({"anyOf": [whole(), {"const": False}]}),
        array(ref("Heartbeat")),
    ),
    Operation("post", "/complete/{queue}", "Turn work in: the ids.", IDS, array(ref("Completion"))),
    Operation(
        "post",
        "/add/{queue}",
        "Add work: an id for each item, or false.",
        array(ID_OR_FALSE),
        array(ref("NewJob")),
    ),
    Operation("post", "/fail/{queue}", "Fail for good: the ids.", IDS, array(ref("Failing"))),
    Operation("post", "/retry/{queue}", "Try again later: the ids.", IDS, array(ref("Retrying"))),
    Operation(
        "post",
        "/partial",
        "Send pieces of a result: how many there are, or false.",
        array({"anyOf": [whole(), {"const": False}]}),
        _each(id=ID, data={}, warning=FLAG, lease=maybe(text())),
    ),
    Operation("get", "/queues", "All queues.", array(ref("Queue")), tag="look"),
    Operation("get", "/queues/{queue}", "One queue.", ref("QueueWithSettings"), tag="look"),
    Operation(
        "post",
        "/queues/{queue}",
        "Settings of a queue; what is not named stays.",
        {"type": "object"},
        ref("QueueSettings"),
        tag="operate",
    ),
    Operation("delete", "/queues/{queue}", "Forget a queue.", text(), tag="operate"),
    Operation("get", "/job/{id}", "One job.", ref("Job"), tag="look"),
    Operation("get", "/job/{id}/partials", "Pieces.", array(ref("Partial")), tag="look"),
    Operation(
        "get",
        "/jobs",
        "Search.",
        array(ref("ListedJob")),
        query=f"state queue tag host protocol text {_PAGE}",
        tag="look",
    ),
    Operation(
        "get",
        "/failed",
        "How many failed, by group.",
        {"type": "object", "additionalProperties": whole()},
        tag="look",
    ),
    Operation(
        "get",
        "/failed/{name}",
        "Failed jobs of a group.",
        array(ref("ListedJob")),
        query=_PAGE,
        tag="look",
    ),
    Operation(
        "get",
        "/tags/{name}",
        "Jobs with a tag.",
        array(ref("ListedJob")),
        query=_PAGE,
        tag="look",
    ),
    Operation("get", "/workers", "Who works here.", array(ref("Worker")), tag="look"),
    Operation("get", "/workers/{name}", "One worker.", ref("Worker"), tag="look"),
    Operation("get", "/limits", "Named limits.", array(ref("Limit")), tag="look"),
    Operation("get", "/recurring", "Recurring jobs.", array(ref("Recurring")), tag="look"),
    Operation("get", "/recurring/{name}", "One of them.", ref("Recurring"), tag="look"),
    Operation(
        "get",
        "/stats/{queue}",
        "How long jobs waited and ran on a day.",
        ref("Statistics"),
        query="date",
        tag="look",
    ),
    Operation("post", "/cancel", "Cancel jobs: the ids.", IDS, array(ID), tag="operate"),
    Operation(
        "post",
        "/requeue",
        "Finished jobs once more.",
        array(ID_OR_FALSE),
        _each(id=ID, queue=maybe(_WORD), delay=SECONDS),
        tag="operate",
    ),
    Operation(
        "post",
        "/move",
        "Jobs into another queue.",
        array(ID_OR_FALSE),
        _each(id=ID, queue=_WORD, delay=SECONDS),
        tag="operate",
    ),
    Operation(
        "post",
        "/priority",
        "New priorities.",
        array({"anyOf": [number(), {"const": False}]}),
        _each(id=ID, priority=number(minimum=-1e6, maximum=1e6)),
        tag="operate",
    ),
    Operation(
        "post",
        "/tag",
        "Add and remove tags.",
        array({"anyOf": [array(text()), {"const": False}]}),
        _each(id=ID, add=TAGS, remove=TAGS),
        tag="operate",
    ),
    Operation(
        "post",
        "/depends",
        "Add and remove dependencies.",
        array({"anyOf": [IDS, {"const": False}]}),
        _each(id=ID, add=array(ID), remove=array(ID)),
        tag="operate",
    ),
    Operation("post", "/timeout", "End locks.", array(ID_OR_FALSE), _each(id=ID), tag="operate"),
    Operation(
        "post",
        "/unfail/{queue}",
        "The longest failed jobs of a group wait again.",
        IDS,
        record("group", group=text(), count=whole(minimum=1, maximum=1000)),
        tag="operate",
    ),
    Operation("post", "/pause", "Hand nothing out.", array(text()), _NAMES, tag="operate"),
    Operation("post", "/resume", "Hand out again.", array(text()), _NAMES, tag="operate"),
    Operation(
        "post",
        "/limits/{name}",
        "Set or remove a named limit.",
        record("name max", name=text(), max=maybe(whole())),
        record("max", max=maybe(whole(minimum=0, maximum=10**6))),
        tag="operate",
    ),
    Operation(
        "post",
        "/recurring/{queue}",
        "Make or change recurring jobs.",
        array(ID_OR_FALSE),
        array(ref("NewRecurring")),
        tag="operate",
    ),
    Operation("post", "/unrecur", "Stop recurring jobs.", array(text()), _NAMES, tag="operate"),
)
_PARAMETERS: Final[dict[str, Schema]] = {
    "queue": _QUEUE_SEGMENT,
    "count": whole(minimum=1, maximum=10**6),
    "id": ID,
    "name": _WORD,
    "wait": number(minimum=0, maximum=0.05),
    "host": text(pattern="^[!-~]{1,200}$"),
    "array": text(enum=["1"]),
    "order": text(enum=["newest", "oldest"]),
    "after": whole(minimum=0, maximum=10**15),
    "state": text(
        enum=["waiting", "scheduled", "blocked", "pending", "complete", "failed", "cancelled"]
    ),
    "tag": _WORD,
    "protocol": _WORD,
    "text": _WORD,
    "date": text(format="date"),
}
_PAGE_COUNT: Final = whole(minimum=1, maximum=1000)


def document() -> dict[str, Any]:
    """The whole of it."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    paths["/events"] = {"get": _events()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Manyhands: the qless API",
            "version": __version__,
            "description": (
                "Every answer is one JSON object with `results`; with `error`, if there was one. "
                "Items of a batch that were refused are listed in `errors`, beside the results "
                "of the others. Durations are in seconds, instants in seconds since 1970."
            ),
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    words = operation.path.strip("/").replace("{", "").replace("}", "").replace("/", "_")
    found: dict[str, Any] = {
        "operationId": f"{operation.method}_{words}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation.results),
    }
    if operation.data is not None:
        body = record("data", data=operation.data, host=text(pattern="^[!-~]{1,200}$"))
        content = {"application/json": {"schema": body}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for part in operation.path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            yield {"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
    for name in operation.query.split():
        schema = _PAGE_COUNT if name == "count" else _PARAMETERS[name]
        yield {"name": name, "in": "query", "schema": schema}


def _responses(results: Schema) -> dict[str, Any]:
    beside = {
        "time": ref("Time"),
        "load": ref("Load"),
        "errors": {**array(ref("ItemError")), "minItems": 1},
        "next": maybe(whole()),
        "complete": FLAG,
    }
    good = record("results time", results=results, **beside)
    bad = record(
        "results error time", results={"type": "null"}, error=ref("Error"), time=ref("Time")
    )
    found: dict[str, Any] = {
        "200": {
            "description": "It worked, at least in part.",
            "content": {"application/json": {"schema": good}},
        }
    }
    for status, sentence in _ERRORS.items():
        content = {"application/json": {"schema": bad}}
        found[str(status)] = {"description": sentence, "content": content}
    return found


def _events() -> dict[str, Any]:
    stream = {"schema": text(description="id is the event's number, data is JSON")}
    return {
        "operationId": "get_events",
        "summary": "Events as they happen, as server-sent events.",
        "tags": ["look"],
        "parameters": [
            {
                "name": "topics",
                "in": "query",
                "description": "AMQP topic patterns over <word>.<protocol>.<id>.<queue>",
                "schema": text(),
            },
            {"name": "after", "in": "query", "schema": _PARAMETERS["after"]},
            {"name": "Last-Event-ID", "in": "header", "schema": text(pattern="^[0-9]{1,18}$")},
        ],
        "responses": {
            "200": {"description": "The stream.", "content": {"text/event-stream": stream}},
            **{key: value for key, value in _responses({}).items() if key != "200"},
        },
    }


_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.4rem .6rem;"
    "vertical-align:top}td:first-child{white-space:nowrap}pre{overflow:auto}"
    ":root{color-scheme:light dark}"
)
_HEADINGS: Final = {"work": "Work", "look": "Look", "operate": "Operate"}


def page() -> str:
    """The document for people: every route, what it takes, what it answers."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Manyhands: the qless API</title><style>{_STYLE}</style>",
        f"<h1>Manyhands {html.escape(__version__)}: the qless API</h1>",
        f"<p>{html.escape(document()['info']['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for tag, heading in _HEADINGS.items():
        parts.append(f"<h2>{heading}</h2><table>")
        parts += [_row(operation) for operation in OPERATIONS if operation.tag == tag]
        if tag == "look":
            parts.append(
                "<tr><td><code>GET /events</code><td>Events as they happen, as server-sent events."
                " <code>?topics=</code> chooses, <code>Last-Event-ID</code> resumes."
            )
        parts.append("</table>")
    return "".join(parts)


def _row(operation: Operation) -> str:
    route = html.escape(f"{operation.method.upper()} {operation.path}")
    query = "".join(f" <code>?{name}</code>" for name in operation.query.split())
    data = ""
    if operation.data is not None:
        data = f"<details><summary>data</summary><pre>{_shape(operation.data, 0)}</pre></details>"
    return f"<tr><td><code>{route}</code><td>{html.escape(operation.summary)}{query}{data}"


def _shape(schema: Schema, depth: int) -> str:
    """A schema in few words."""
    indent = "  " * (depth + 1)
    if "$ref" in schema:
        return _shape(SCHEMAS[schema["$ref"].rpartition("/")[2]], depth)
    if "anyOf" in schema:
        return " or ".join(_shape(one, depth) for one in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"]).lower()
    if schema.get("type") == "array":
        return f"[{_shape(schema['items'], depth)}, …]"
    if "properties" in schema:
        lines = [
            f"{indent}{'' if key in schema['required'] else '?'}{key}: {_shape(one, depth + 1)}"
            for key, one in schema["properties"].items()
        ]
        return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
    return html.escape(str(schema.get("type", "any JSON value")))
