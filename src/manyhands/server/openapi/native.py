"""The operations of the native API. The shapes of bodies are those that its code reads."""

from typing import Any, Final

from manyhands.model import limits
from manyhands.model.job import State
from manyhands.model.waiting import Obstacle
from manyhands.protocols.native import bodies, bulk, operations, settings
from manyhands.server.history import RANGES
from manyhands.server.openapi import native_operating
from manyhands.server.openapi.words import (
    ANY,
    FLAG,
    OBJECT,
    Api,
    Operation,
    Schema,
    array,
    envelope,
    maybe,
    number,
    read_shapes,
    record,
    ref,
    text,
    whole,
)

_PREFIX: Final = "Native"
_ID: Final = text(minLength=1, maxLength=limits.JOB_ID_DIGITS_MAX)
_NAME: Final = text(minLength=1, maxLength=limits.QUEUE_NAME_BYTES_MAX)
_STATE: Final = native_operating.STATE
_INSTANT: Final = native_operating.INSTANT
_HOLDER: Final = {"realm": text(), "name": maybe(text()), "address": text()}
_BRIEF: Final = {"id": text(), "queue": text(), "state": _STATE}
_LISTED: Final = {
    **_BRIEF,
    "priority": number(),
    "submitted_at": _INSTANT,
    "entered_at": _INSTANT,
    "finished_at": maybe(_INSTANT),
    "run_at": maybe(_INSTANT),
    "deadline_at": maybe(_INSTANT),
    "attempts_used": whole(minimum=0),
    "incarnation": whole(minimum=0),
    "tags": array(text()),
    "payload_bytes": whole(minimum=0),
    "origin": OBJECT,
    "lease": maybe(OBJECT),
    "failure": maybe(record("code message", code=text(), message=text(), payload=ANY)),
    "reason": maybe(text()),
}
_WHOLE: Final = {
    **_LISTED,
    "waits": array(
        record(
            "what sentence until_at name ids count",
            what=text(enum=[obstacle.value for obstacle in Obstacle]),
            sentence=text(),
            until_at=maybe(_INSTANT),
            name=maybe(text()),
            ids=array(text()),
            count=whole(minimum=0),
        )
    ),
    "uid": text(pattern="^[0-9a-f]{32}$"),
    "namespace": maybe(text()),
    "name": maybe(text()),
    "unique_key": ANY,
    "limits": array(text()),
    "depends_on": array(text()),
    "waits_for": array(text()),
    "lease_number": whole(minimum=0),
    "attempts": array(OBJECT),
    "history": array(record("at what detail", at=_INSTANT, what=text(), detail=text())),
    "terms": OBJECT,
    "partials_count": whole(minimum=0),
    "schedule": maybe(text()),
    "encoding": text(),
    "payload": ANY,
    "result_encoding": text(),
    "result": ANY,
}
_EVENT: Final = {
    "seq": whole(minimum=1),
    "at": _INSTANT,
    **_BRIEF,
    "reason": maybe(text()),
    "incarnation": whole(minimum=0),
    "lease_number": whole(minimum=0),
    "attempts_used": whole(minimum=0),
    "attempts_max": whole(minimum=-1),
    "holder": maybe(record(" ".join(_HOLDER), **_HOLDER)),
    "expires_at": maybe(_INSTANT),
    "priority": number(),
    "submitted_at": _INSTANT,
    "deadline_at": maybe(_INSTANT),
    "realm": text(),
    "lasted_ms": whole(),
}


def _required(shape: dict[str, Schema], **more: Schema) -> Schema:
    """All of these, and perhaps others."""
    return record(" ".join(shape), **shape, **more)


_SCHEMAS: Final[dict[str, Schema]] = {
    "NativeSubmitted": _required({**_BRIEF, "created": FLAG}),
    "NativeChanged": _required(
        _BRIEF,
        lease_number=whole(minimum=0),
        expires_at=_INSTANT,
        reason=text(),
        run_at=_INSTANT,
        repeated=FLAG,
    ),
    "NativeClaimed": record(
        "id queue token lease_number attempts_used priority encoding payload",
        id=text(),
        queue=text(),
        token=text(),
        lease_number=whole(minimum=1),
        attempts_used=whole(minimum=0),
        priority=number(),
        encoding=text(),
        payload=ANY,
        expires_at=_INSTANT,
        term_ms=whole(),
        cutoff_at=_INSTANT,
        deadline_at=_INSTANT,
        tags=array(text()),
    ),
    "NativeListedJob": _required(_LISTED, name=text(), progress=OBJECT),
    "NativeJob": _required(_WHOLE, progress=OBJECT),
    "NativePartial": record(
        "number at warning payload",
        number=whole(minimum=1),
        at=_INSTANT,
        warning=FLAG,
        payload=ANY,
    ),
    "NativeQueue": record(
        "name paused counts oldest_ready_age_ms policy awaited",
        name=text(),
        paused=FLAG,
        counts=_required({state.value: whole(minimum=0) for state in State}),
        oldest_ready_age_ms=maybe(whole(minimum=0)),
        policy=OBJECT,
        awaited=FLAG,
    ),
    "NativeWorker": _required({**_HOLDER, "leases_count": whole(), "leases": array(OBJECT)}),
    "NativeEvent": _required(_EVENT),
    "NativeLimit": record(
        "name concurrency_max used", name=text(), concurrency_max=whole(), used=whole()
    ),
    "NativeSchedule": record(
        "id queue next_at paused fired_count payload",
        id=text(),
        queue=text(),
        interval_ms=maybe(whole()),
        cron=maybe(text()),
        next_at=_INSTANT,
        paused=FLAG,
        fired_count=whole(),
        payload=ANY,
    ),
    "NativeItemError": record(
        "index id code message",
        index=whole(minimum=0),
        id=maybe(text()),
        code=text(),
        message=text(),
        state=_STATE,
        queue=text(),
    ),
}
_items: Final = {
    "submit": bodies.NewItem,
    "renew": operations.RenewItem,
    "progress": operations.ProgressItem,
    "partial": operations.PartialItem,
    "complete": operations.CompleteItem,
    "fail": operations.FailItem,
    "release": operations.ReleaseItem,
    "requeue": operations.RequeueItem,
    "move": operations.MoveItem,
    "priority": operations.PriorityItem,
    "tags": operations.TagsItem,
    "dependencies": operations.DependenciesItem,
    "expire": operations.ExpireItem,
}
_alone: Final = (
    bodies.ClaimBody,
    bodies.CancelBody,
    settings.QueueBody,
    settings.LimitBody,
    settings.ScheduleBody,
    bulk.BulkBody,
)
_SCHEMAS.update(native_operating.SCHEMAS)
_SCHEMAS.update(read_shapes([*_items.values(), *_alone], _PREFIX))
_WAIT: Final = number(minimum=0, maximum=bodies.WAIT_SECONDS_MAX)
_SCHEMAS["NativeClaimBody"]["properties"]["wait"] = {**_WAIT, "default": 0.0}

_SUMMARIES: Final = {
    "submit": "Submit jobs.",
    "renew": "Still at it: renew a lease.",
    "progress": "How far it is.",
    "partial": "A piece of the result, or a warning.",
    "complete": "The work is finished.",
    "fail": "The attempt failed.",
    "release": "Give a job back, uncharged.",
    "requeue": "A finished job once more.",
    "move": "Into another queue.",
    "priority": "A new priority.",
    "tags": "Add and remove tags.",
    "dependencies": "Add and remove dependencies.",
    "expire": "End a lease as if its time were up.",
}


def _body(kind: Any) -> Schema:  # noqa: ANN401 - any structure
    return ref(_PREFIX + kind.__name__)


def _one_or_many(name: str) -> Operation:
    """A body is an item or many of them, and so is the answer."""
    item = _body(_items[name])
    many = {**record("items", items=array(item)), "additionalProperties": False}
    if name == "submit":
        many["properties"]["all_or_nothing"] = FLAG
    result = ref("NativeSubmitted" if name == "submit" else "NativeChanged")
    results = {"anyOf": [result, array(maybe(result))]}
    answer = envelope(results, errors=array(ref("NativeItemError")))
    body: Schema = {"anyOf": [item, many]}
    return Operation("post", f"/api/{name}", _SUMMARIES[name], answer, "api-work", body)


def _look(path: str, summary: str, results: Schema, query: str = "", **beside: Schema) -> Operation:
    answer = envelope(results, **beside)
    return Operation("get", f"/api/{path}", summary, answer, "api-look", query=query)


def _by_name(path: str, summary: str, row: str) -> Operation:
    """A list in order of names, a page at a time."""
    return _look(path, summary, array(ref(row)), "after@name count", next=maybe(text()))


def _set(method: str, path: str, summary: str, named: str, kind: Any = None) -> Operation:  # noqa: ANN401
    answer = envelope(record(named, next_at=_INSTANT, **{named: text()}))
    body = None if kind is None else _body(kind)
    return Operation(method, f"/api/{path}", summary, answer, "api-operate", body)


_OPERATIONS: Final[tuple[Operation, ...]] = (
    *(_one_or_many(name) for name in _items),
    Operation(
        "post",
        "/api/claim",
        "Work for a worker.",
        envelope(array(ref("NativeClaimed"))),
        "api-work",
        _body(bodies.ClaimBody),
    ),
    Operation(
        "post",
        "/api/cancel",
        "Cancel jobs, and those that depend on them.",
        envelope(array(ref("NativeChanged"))),
        "api-work",
        _body(bodies.CancelBody),
    ),
    _look(
        "jobs",
        "Search.",
        array(ref("NativeListedJob")),
        "state queue tag worker realm unique_key name age_min age_max failure failure_code text"
        " order after count",
        next=maybe(whole()),
        complete=FLAG,
    ),
    _look("jobs/{id}", "One job, by any of its ids.", ref("NativeJob")),
    _look("jobs/{id}/partials", "The kept pieces of its result.", array(ref("NativePartial"))),
    _by_name("queues", "Queues by name.", "NativeQueue"),
    _look("queues/{name}", "One queue.", ref("NativeQueue")),
    _set("put", "queues/{name}", "Create, pause or set a queue.", "name", settings.QueueBody),
    _set("delete", "queues/{name}", "Forget a queue that has nothing left to do.", "name"),
    _by_name("workers", "Everybody who holds a lease.", "NativeWorker"),
    _look(
        "events",
        "The log of events from a number on.",
        array(ref("NativeEvent")),
        "after count wait",
        next=whole(),
        first_seq=whole(),
        last_seq=whole(),
    ),
    _by_name("limits", "Named limits.", "NativeLimit"),
    _set("put", "limits/{name}", "Set a named limit.", "name", settings.LimitBody),
    _set("delete", "limits/{name}", "Remove a named limit.", "name"),
    _by_name("schedules", "Schedules.", "NativeSchedule"),
    _set("put", "schedules/{name}", "Create or replace one.", "id", settings.ScheduleBody),
    _set("delete", "schedules/{name}", "No further jobs from it.", "id"),
    _look("about", "What runs here.", OBJECT),
    _look(
        "history",
        "What happened in the last hour, day or week, step by step.",
        array(native_operating.SAMPLE),
        "range queue",
        range=text(enum=list(RANGES)),
        queue=maybe(text()),
        step_ms=whole(minimum=1),
        total=native_operating.SAMPLE,
    ),
    _look(
        "failures",
        "Failures by group.",
        array(ref("NativeFailureGroup")),
        "queue order@failures count group",
        groups=whole(minimum=0),
        failed=whole(minimum=0),
    ),
    _look(
        "audit",
        "Who changed what, newest first.",
        array(ref("NativeAuditEntry")),
        "before count",
        next=maybe(whole()),
    ),
    _look("bulk", "Changes of many jobs, the newest first.", array(native_operating.BULK)),
    _look("bulk/{id}", "One of them.", native_operating.BULK),
    Operation(
        "post",
        "/api/bulk",
        "Change all jobs that a filter finds, or only count them.",
        envelope(native_operating.BEGUN),
        "api-operate",
        _body(bulk.BulkBody),
    ),
    Operation(
        "post",
        "/api/bulk/{id}/cancel",
        "No further.",
        envelope(native_operating.BULK),
        "api-operate",
    ),
    _look("protocols", "What goes over each listener.", array(ref("NativeListener"))),
)
_PARAMETERS: Final[dict[str, Schema]] = {
    "id": _ID,
    "name": _NAME,
    "?name": text(),
    "state": text(enum=[state.value for state in State]),
    "queue": text(),
    "tag": text(),
    "worker": text(),
    "realm": text(),
    "unique_key": text(),
    "age_min": number(minimum=0, maximum=1e9),
    "age_max": number(minimum=0, maximum=1e9),
    "failure": text(),
    "failure_code": text(),
    "text": text(),
    "order@failures": text(enum=["count", "latest"]),
    "group": text(),
    "before": whole(minimum=1, maximum=10**15),
    "range": text(enum=list(RANGES)),
    "order": text(enum=["newest", "oldest"]),
    "after": whole(minimum=0, maximum=10**15),
    "after@name": text(),
    "count": whole(minimum=1, maximum=1000),
    "wait": _WAIT,
}
API: Final = Api(
    "The native API",
    _OPERATIONS,
    _PARAMETERS,
    _SCHEMAS,
    {"api-work": "Work", "api-look": "Look", "api-operate": "Operate"},
)
