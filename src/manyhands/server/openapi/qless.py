"""The operations of the qless API."""

from typing import Final

from manyhands.model import limits
from manyhands.server.openapi.qless_schemas import ID, ID_OR_FALSE, IDS, SCHEMAS, TAGS
from manyhands.server.openapi.words import (
    FLAG,
    SECONDS,
    Api,
    Operation,
    Schema,
    array,
    envelope,
    maybe,
    number,
    record,
    ref,
    text,
    whole,
)

_NAME: Final = text(minLength=1, maxLength=limits.QUEUE_NAME_BYTES_MAX)
_HOST: Final = text(minLength=1, maxLength=limits.HOLDER_NAME_BYTES_MAX)
# The parameters of lists in order of arrival, and of those in order of names.
_PAGE: Final = "order after count"
_BY_NAME: Final = "after@name count"


def _operation(
    method: str,
    path: str,
    summary: str,
    results: Schema,
    data: Schema | None = None,
    *,
    query: str = "",
    tag: str = "work",
) -> Operation:
    """In the envelope of this API, and with the frame of its bodies."""
    beside: dict[str, Schema] = {}
    if _PAGE in query:
        beside = {"next": maybe(whole()), "complete": FLAG}
    elif _BY_NAME in query:
        beside = {"next": maybe(text())}
    elif method == "post":
        beside = {"errors": {**array(ref("ItemError")), "minItems": 1}}
    answer = envelope(results, load=ref("Load"), **beside)
    body = None if data is None else record("data", data=data, host=maybe(_HOST))
    return Operation(method, path, summary, answer, tag, body, query)


_TAKEN: Final[Schema] = {"anyOf": [ref("Item"), array(ref("Item")), {"type": "null"}]}
_TAKE: Final = "wait host array"
_TAKE_DATA: Final = record("", wait=number(minimum=0, maximum=60), array=FLAG)
_NAMES: Final = array(_NAME)


def _each(**properties: Schema) -> Schema:
    required = " ".join(key for key in ("id", "queue", "priority", "data") if key in properties)
    return array(record(required, **properties))


_OPERATIONS: Final[tuple[Operation, ...]] = (
    _operation("get", "/get/{queue}", "Take one item of work.", _TAKEN, query=_TAKE),
    _operation("post", "/get/{queue}", "The same, the safe way.", _TAKEN, _TAKE_DATA),
    _operation("get", "/get/{queue}/{count}", "Take several items.", _TAKEN, query=_TAKE),
    _operation("post", "/get/{queue}/{count}", "The same, the safe way.", _TAKEN, _TAKE_DATA),
    _operation(
        "get",
        "/{queue}/{count}",
        "The short form of it, unless the first segment is one of ours.",
        _TAKEN,
        query=_TAKE,
    ),
    _operation(
        "post",
        "/heartbeat/{queue}",
        "Renew locks: seconds until the next time, or false.",
        array({"anyOf": [whole(), {"const": False}]}),
        array(ref("Heartbeat")),
    ),
    _operation(
        "post",
        "/hearbeat/{queue}",
        "The same for those who copied the typo of the first document.",
        array({"anyOf": [whole(), {"const": False}]}),
        array(ref("Heartbeat")),
    ),
    _operation(
        "post", "/complete/{queue}", "Turn work in: the ids.", IDS, array(ref("Completion"))
    ),
    _operation(
        "post",
        "/add/{queue}",
        "Add work: an id for each item, or false.",
        array(ID_OR_FALSE),
        array(ref("NewJob")),
    ),
    _operation("post", "/fail/{queue}", "Fail for good: the ids.", IDS, array(ref("Failing"))),
    _operation("post", "/retry/{queue}", "Try again later: the ids.", IDS, array(ref("Retrying"))),
    _operation(
        "post",
        "/partial",
        "Send pieces of a result: how many there are, or false.",
        array({"anyOf": [whole(), {"const": False}]}),
        _each(id=ID, data={}, warning=FLAG, lease=maybe(text())),
    ),
    _operation("get", "/queues", "Queues.", array(ref("Queue")), query=_BY_NAME, tag="look"),
    _operation("get", "/queues/{queue}", "One queue.", ref("QueueWithSettings"), tag="look"),
    _operation(
        "post",
        "/queues/{queue}",
        "Settings of a queue; what is not named stays.",
        ref("QueuePolicy"),
        ref("QueueSettings"),
        tag="operate",
    ),
    _operation("delete", "/queues/{queue}", "Forget a queue.", text(), tag="operate"),
    _operation("get", "/job/{id}", "One job.", ref("Job"), tag="look"),
    _operation("get", "/job/{id}/partials", "Pieces.", array(ref("Partial")), tag="look"),
    _operation(
        "get",
        "/jobs",
        "Search.",
        array(ref("ListedJob")),
        query=f"state queue tag host protocol text {_PAGE}",
        tag="look",
    ),
    _operation(
        "get",
        "/failed",
        "How many failed, by group.",
        {"type": "object", "additionalProperties": whole()},
        query=_BY_NAME,
        tag="look",
    ),
    _operation(
        "get",
        "/failed/{name}",
        "Failed jobs of a group.",
        array(ref("ListedJob")),
        query=_PAGE,
        tag="look",
    ),
    _operation(
        "get",
        "/tags/{name}",
        "Jobs with a tag.",
        array(ref("ListedJob")),
        query=_PAGE,
        tag="look",
    ),
    _operation(
        "get", "/workers", "Who works here.", array(ref("Worker")), query=_BY_NAME, tag="look"
    ),
    _operation(
        "get",
        "/workers/{name}",
        "One worker, and its jobs in order of their ids.",
        ref("Worker"),
        query=_BY_NAME,
        tag="look",
    ),
    _operation("get", "/limits", "Named limits.", array(ref("Limit")), query=_BY_NAME, tag="look"),
    _operation(
        "get", "/recurring", "Recurring jobs.", array(ref("Recurring")), query=_BY_NAME, tag="look"
    ),
    _operation("get", "/recurring/{name}", "One of them.", ref("Recurring"), tag="look"),
    _operation(
        "get",
        "/stats/{queue}",
        "How long jobs waited and ran on a day.",
        ref("Statistics"),
        query="date",
        tag="look",
    ),
    _operation("post", "/cancel", "Cancel jobs: the ids.", IDS, array(ID), tag="operate"),
    _operation(
        "post",
        "/requeue",
        "Finished jobs once more.",
        array(ID_OR_FALSE),
        _each(id=ID, queue=maybe(_NAME), delay=SECONDS),
        tag="operate",
    ),
    _operation(
        "post",
        "/move",
        "Jobs into another queue.",
        array(ID_OR_FALSE),
        _each(id=ID, queue=_NAME, delay=SECONDS),
        tag="operate",
    ),
    _operation(
        "post",
        "/priority",
        "New priorities.",
        array({"anyOf": [number(), {"const": False}]}),
        _each(id=ID, priority=number(minimum=-1e6, maximum=1e6)),
        tag="operate",
    ),
    _operation(
        "post",
        "/tag",
        "Add and remove tags.",
        array({"anyOf": [array(text()), {"const": False}]}),
        _each(id=ID, add=TAGS, remove=TAGS),
        tag="operate",
    ),
    _operation(
        "post",
        "/depends",
        "Add and remove dependencies.",
        array({"anyOf": [IDS, {"const": False}]}),
        _each(id=ID, add=array(ID), remove=array(ID)),
        tag="operate",
    ),
    _operation("post", "/timeout", "End locks.", array(ID_OR_FALSE), _each(id=ID), tag="operate"),
    _operation(
        "post",
        "/unfail/{queue}",
        "The longest failed jobs of a group wait again.",
        IDS,
        record("group", group=text(), count=whole(minimum=1, maximum=1000)),
        tag="operate",
    ),
    _operation("post", "/pause", "Hand nothing out.", array(text()), _NAMES, tag="operate"),
    _operation("post", "/resume", "Hand out again.", array(text()), _NAMES, tag="operate"),
    _operation(
        "post",
        "/limits/{name}",
        "Set or remove a named limit.",
        record("name max", name=text(), max=maybe(whole())),
        record("max", max=maybe(whole(minimum=0, maximum=10**6))),
        tag="operate",
    ),
    _operation(
        "post",
        "/recurring/{queue}",
        "Make or change recurring jobs.",
        array(ID_OR_FALSE),
        array(ref("NewRecurring")),
        tag="operate",
    ),
    _operation("post", "/unrecur", "Stop recurring jobs.", array(text()), _NAMES, tag="operate"),
    Operation(
        "get",
        "/events",
        "Events as they happen, as server-sent events. Topics are AMQP patterns over "
        "<word>.<protocol>.<id>.<queue>.",
        text(),
        "look",
        query="topics after Last-Event-ID",
        kind="text/event-stream",
    ),
)
_PARAMETERS: Final[dict[str, Schema]] = {
    "queue": _NAME,
    "count": whole(minimum=1, maximum=10**6),
    "?count": whole(minimum=1, maximum=1000),
    "id": ID,
    "name": _NAME,
    "wait": number(minimum=0, maximum=60),
    "host": _HOST,
    "array": text(enum=["1"]),
    "order": text(enum=["newest", "oldest"]),
    "after": whole(minimum=0, maximum=10**15),
    "after@name": text(),
    "state": text(
        enum=["waiting", "scheduled", "blocked", "pending", "complete", "failed", "cancelled"]
    ),
    "tag": text(),
    "protocol": text(),
    "text": text(),
    "date": text(format="date"),
    "topics": text(),
    "Last-Event-ID": text(pattern="^[0-9]{1,18}$"),
}
API: Final = Api(
    "The qless API",
    _OPERATIONS,
    _PARAMETERS,
    SCHEMAS,
    {"work": "Work", "look": "Look", "operate": "Operate"},
)
