"""The shapes of what operators of the native API are answered: how it went, what went wrong, who
did what, and changes of many jobs.
"""

from typing import Final

from manyhands.model.history import DEPTH_STATES
from manyhands.model.job import State
from manyhands.server.openapi.words import (
    FLAG,
    Schema,
    array,
    closed,
    maybe,
    number,
    ref,
    text,
    whole,
)
from manyhands.server.traffic import REALMS
from manyhands.store.bulk import BulkAction, BulkState

INSTANT: Final = whole(description="milliseconds since 1970")
STATE: Final = text(enum=[state.value for state in State])
_COUNT: Final = whole(minimum=0)
_ACTION: Final = text(enum=[action.value for action in BulkAction])
_DURATIONS: Final = closed(
    count=whole(minimum=1),
    mean=number(minimum=0),
    p50=number(minimum=0),
    p95=number(minimum=0),
)
_CONDITIONS: Final[Schema] = {
    **closed(state=array(STATE)),
    "properties": {
        "state": array(STATE),
        "submitted_before": INSTANT,
        "submitted_after": INSTANT,
        **dict.fromkeys(
            ("queue", "tag", "worker", "realm", "name", "unique_key", "failure", "failure_code"),
            text(),
        ),
        "text": text(),
    },
}
_FLOW: Final = {"jobs_in": _COUNT, "jobs_out": _COUNT}

SCHEMAS: Final[dict[str, Schema]] = {
    "NativeSample": closed(
        at=INSTANT,
        submitted=_COUNT,
        started=_COUNT,
        completed=_COUNT,
        failed=_COUNT,
        failed_attempts=_COUNT,
        lost=_COUNT,
        cancelled=_COUNT,
        wait_ms=maybe(_DURATIONS),
        run_ms=maybe(_DURATIONS),
        depth=maybe(closed(**{state.value: _COUNT for state in DEPTH_STATES})),
        queues_left_out=_COUNT,
    ),
    "NativeFailureGroup": closed(
        group=text(),
        code=text(),
        message=text(),
        count=whole(minimum=1),
        first_at=INSTANT,
        last_at=INSTANT,
        trend={**array(_COUNT), "minItems": 24, "maxItems": 24},
        queues={"type": "object", "additionalProperties": whole(minimum=1)},
        jobs=array(text()),
    ),
    "NativeBulk": closed(
        id=text(),
        action=_ACTION,
        state=text(enum=[state.value for state in BulkState]),
        who=text(),
        filter=maybe(_CONDITIONS),
        queue=maybe(text()),
        expected=_COUNT,
        expected_all=FLAG,
        done=_COUNT,
        changed=_COUNT,
        passed=_COUNT,
        refused={"type": "object", "additionalProperties": whole(minimum=1)},
        created_at=INSTANT,
        finished_at=maybe(INSTANT),
    ),
    "NativeBulkCount": closed(action=_ACTION, expected=_COUNT, expected_all=FLAG),
    "NativeListener": closed(
        protocol=text(enum=list(REALMS)),
        address=maybe(text()),
        connections=_COUNT,
        errors=_COUNT,
        deliveries=maybe(_COUNT),
        realms={"type": "object", "additionalProperties": closed(**_FLOW)},
        **_FLOW,
    ),
    "NativeAuditEntry": closed(
        seq=whole(minimum=1),
        at=INSTANT,
        who=text(),
        role=text(),
        address=text(),
        request=text(),
        what=text(),
        target=text(),
        asked=_COUNT,
        changed=_COUNT,
        refused=text(),
        known=FLAG,
    ),
}

BULK: Final = ref("NativeBulk")
BEGUN: Final[Schema] = {"anyOf": [BULK, ref("NativeBulkCount")]}
SAMPLE: Final = ref("NativeSample")
