"""The shapes of the qless API, for its OpenAPI document."""

from typing import Final

from manyhands.model import limits
from manyhands.protocols.qless.identifiers import TEXT_BYTES_MAX
from manyhands.server.openapi.words import (
    ANY,
    FLAG,
    SECONDS,
    Schema,
    array,
    closed,
    maybe,
    number,
    record,
    ref,
    text,
    whole,
)

ID: Final = ref("Id")
# What an id may be, by the server's policy.
ID_KINDS: Final[dict[str, Schema]] = {
    "hexadecimal": text(pattern=f"^[0-9A-Fa-f]{{1,{limits.JOB_ID_DIGITS_MAX}}}$"),
    "any": text(
        minLength=1,
        maxLength=TEXT_BYTES_MAX,
        description=f"printable text of up to {TEXT_BYTES_MAX} bytes",
    ),
}
IDS: Final = array(text())
ID_OR_FALSE: Final[Schema] = {"anyOf": [text(), {"const": False}]}
TAGS: Final = {**array(text(pattern="^[!-~]{1,200}$")), "maxItems": limits.TAGS_COUNT_MAX}
_HISTORY: Final = record("what when", what=text(), when=number(), host=maybe(text()), detail=text())
_LISTED: Final = {
    "id": text(),
    "state": text(enum=["waiting", "pending", "complete", "failed", "cancelled"]),
    "detail": maybe(text()),
    "queue": maybe(text()),
    "host": maybe(text()),
    "priority": number(),
    "tags": array(text()),
    "failure": maybe(ref("Failure")),
    "created": number(),
    "updated": number(),
    "protocol": text(),
}
_WISHES: Final = {
    "priority": number(minimum=-1_000_000, maximum=1_000_000),
    "retries": maybe(whole(minimum=-1, maximum=1_000)),
    "heartbeat": maybe(SECONDS),
    "cutoff": maybe(SECONDS),
    "tags": TAGS,
    "limits": {**array(text(pattern="^[!-~]{1,200}$")), "maxItems": 16},
}
_PROGRESS: Final = record(
    "numerator",
    numerator=whole(minimum=0, maximum=10**9),
    denominator=whole(minimum=0, maximum=10**9),
    seconds_left=maybe(whole(minimum=0, maximum=10**9)),
)
_SERIES: Final = record(
    "count mean std histogram",
    count=whole(),
    mean=number(),
    std=number(),
    histogram={**array(whole()), "minItems": 148, "maxItems": 148},
)
_MAYBE_SECONDS: Final = maybe(number(minimum=0))
_BACKOFF: Final = record(
    "",
    first=SECONDS,
    factor=number(minimum=1, maximum=1000),
    max=SECONDS,
    jitter=number(minimum=0, maximum=1),
)
_QUEUE: Final = {
    "name": text(),
    "waiting": whole(minimum=0),
    "pending": whole(minimum=0),
    "scheduled": whole(minimum=0),
    "blocked": whole(minimum=0),
    "stalled": whole(minimum=0),
    "failed": whole(minimum=0),
    "recurring": whole(minimum=0),
    "paused": FLAG,
    "workers": whole(minimum=0),
    "oldest_waiting": maybe(number(minimum=0)),
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Id": ID_KINDS["hexadecimal"],
    "ItemError": record(
        "index id code message",
        index=whole(minimum=0),
        id=maybe(text()),
        code=text(),
        message=text(),
        state=text(),
        queue=text(),
    ),
    "Failure": record(
        "group message when host",
        group=text(),
        message=text(),
        when=maybe(number()),
        host=maybe(text()),
    ),
    "Item": record(
        "id queue meta lease attempt priority",
        id=text(),
        queue=text(),
        meta=ANY,
        lease=text(),
        attempt=whole(minimum=1),
        priority=number(),
        heartbeat=whole(minimum=0),
        expires=number(),
        cutoff=whole(minimum=0),
        tags=array(text()),
        retries_left=whole(minimum=0),
    ),
    "ListedJob": record(" ".join(_LISTED), **_LISTED),
    "Job": record(
        " ".join(_LISTED)
        + " meta retries retries_left attempt depends dependents dependents_count history",
        **_LISTED,
        meta=ANY,
        heartbeat=maybe(whole(minimum=0)),
        retries=whole(minimum=-1),
        retries_left=whole(minimum=-1),
        attempt=whole(minimum=0),
        depends=IDS,
        dependents=IDS,
        dependents_count=whole(minimum=0),
        limits=array(text()),
        progress=maybe(closed(numerator=whole(), denominator=whole(), seconds_left=maybe(whole()))),
        result=ANY,
        due=maybe(number()),
        deadline=maybe(number()),
        recurring=maybe(text()),
        history=array(_HISTORY),
    ),
    "Queue": record(" ".join(_QUEUE), **_QUEUE),
    "QueueWithSettings": record(
        " ".join(_QUEUE) + " settings", **_QUEUE, settings=ref("QueuePolicy")
    ),
    "QueuePolicy": closed(
        heartbeat=_MAYBE_SECONDS,
        grace=number(minimum=0),
        cutoff=_MAYBE_SECONDS,
        retries=maybe(whole(minimum=-1)),
        backoff=maybe(closed(first=number(), factor=number(), max=number(), jitter=number())),
        max_concurrency=maybe(whole(minimum=0)),
        rate=maybe(closed(count=whole(minimum=1), per=number())),
        max_jobs=maybe(whole(minimum=0)),
        keep=_MAYBE_SECONDS,
        keep_count=maybe(whole(minimum=0)),
    ),
    "QueueSettings": record(
        "",
        heartbeat=maybe(SECONDS),
        grace=maybe(SECONDS),
        cutoff=maybe(SECONDS),
        retries=maybe(whole(minimum=-1, maximum=1_000)),
        backoff=maybe(_BACKOFF),
        max_concurrency=maybe(whole(minimum=0, maximum=10**6)),
        rate=maybe(
            record("count per", count=whole(minimum=1), per=number(minimum=0.001, maximum=1e6))
        ),
        max_jobs=maybe(whole(minimum=0, maximum=10**9)),
        keep=maybe(SECONDS),
        keep_count=maybe(whole(minimum=0, maximum=10**9)),
        paused=FLAG,
    ),
    "Worker": record(
        "name",
        name=text(),
        address=text(),
        seen=number(),
        pending=whole(),
        stalled={"anyOf": [whole(), IDS]},
        taken=whole(),
        completed=whole(),
        failed=whole(),
        lost=whole(),
        jobs=IDS,
    ),
    "Limit": record("name max used", name=text(), max=whole(), used=whole()),
    "Recurring": closed(
        id=text(),
        queue=text(),
        meta=ANY,
        interval=maybe(number()),
        cron=maybe(text()),
        time_zone=text(),
        next=number(),
        backlog=whole(minimum=0),
        priority=number(),
        retries=maybe(whole(minimum=-1)),
        tags=array(text()),
        limits=array(text()),
        paused=FLAG,
        count=whole(minimum=0),
        last=maybe(text()),
    ),
    "Statistics": record(
        "queue date wait run retries failures failed",
        queue=text(),
        date=text(format="date"),
        wait=_SERIES,
        run=_SERIES,
        retries=whole(),
        failures=whole(),
        failed=whole(),
    ),
    "Partial": record(
        "number when warning data", number=whole(), when=number(), warning=FLAG, data=ANY
    ),
    "NewJob": record(
        "meta",
        meta=ANY,
        id=maybe(ID),
        delay=SECONDS,
        depends=array(ID),
        depends_missing=text(enum=["refuse", "ok"]),
        deadline=maybe(SECONDS),
        move=FLAG,
        **_WISHES,
    ),
    "Heartbeat": {
        "anyOf": [
            ID,
            record("id", id=ID, lease=maybe(text()), meta=ANY, progress=maybe(_PROGRESS)),
        ]
    },
    "Completion": record(
        "id meta",
        id=ID,
        meta=ANY,
        lease=maybe(text()),
        next=maybe(text(pattern="^[A-Za-z0-9_-]{1,100}$")),
        delay=SECONDS,
        depends=array(ID),
    ),
    "Failing": record(
        "id group",
        id=ID,
        group=text(pattern="^[!-~]{1,200}$"),
        message=text(),
        meta=ANY,
        lease=maybe(text()),
    ),
    "Retrying": record(
        "id",
        id=ID,
        delay=maybe(SECONDS),
        group=maybe(text(pattern="^[!-~]{1,200}$")),
        message=text(),
        lease=maybe(text()),
    ),
    "NewRecurring": record(
        "id meta",
        id=text(pattern="^[!-~]{1,200}$"),
        meta=ANY,
        interval=maybe(number(minimum=1, maximum=1e6)),
        cron=maybe(text()),
        time_zone=text(),
        offset=maybe(SECONDS),
        backlog=whole(minimum=0, maximum=10_000),
        paused=FLAG,
        **_WISHES,
    ),
}
