"""Events of jobs as the four messages of version 0.2.0, with their keys and properties.

The schemas of the status structure and the pending message are closed, so everything else travels
in headers. A body shows the moment of its event, whenever it is rendered: later attempts are left
out.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from manyhands.model.events import Event
from manyhands.model.job import Holder, Job, State
from manyhands.model.reasons import Reason
from manyhands.net.amqp import (
    HeaderTemplate,
    Message,
    header_start,
    pack_headers,
    pack_text_list,
)
from manyhands.protocols.taskcluster.identifiers import (
    PLACEHOLDER,
    identifier_of,
    is_identifier,
    is_routing,
    place_of,
    run_id_of,
    task_id_of,
)

REALM: Final = "taskcluster"
VERSION: Final = "0.2.0"
PENDING: Final = "task_pending_v1"
RUNNING: Final = "task_running_v1"
COMPLETED: Final = "task_completed_v1"
FAILED: Final = "task_failed_v1"
EXCHANGES: Final = (PENDING, RUNNING, COMPLETED, FAILED)
# The names that the exchanges got a few days later.
ALIASES: Final = {
    f"v1/queue:task-{word}": f"task_{word}_v1"
    for word in ("pending", "running", "completed", "failed")
}

# A blocked or delayed job is not pending yet, so there is no message about it.
EXCHANGE_OF: Final[dict[State, str]] = {
    State.READY: PENDING,
    State.LEASED: RUNNING,
    State.COMPLETED: COMPLETED,
    State.FAILED: FAILED,
    State.CANCELLED: FAILED,
}
_STATE_WORDS: Final = {PENDING: "pending", RUNNING: "running", COMPLETED: "completed"}
FAILURES: Final = {
    Reason.FAILED: "failed",
    Reason.DEADLINE: "deadline-exceeded",
    Reason.OUT_OF_ATTEMPTS: "retries-exhausted",
    Reason.DEPENDENCY_FAILED: "dependency-failed",
}
NEVER: Final = "9999-12-31T23:59:59.999Z"
_NEVER_CLAIMED: Final = "1970-01-01T00:00:00.000Z"
_RETRIES_MAX: Final = 999
# 999 runs would make a message of 100 KiB; brokers and bridges expect a few.
RUNS_SHOWN_MAX: Final = 50
_SEQUENCE_DIGITS: Final = 20  # so that the text sorts like the number
_REMEMBERED_MAX: Final = 10_000
# The job's id in other protocols, which cannot be read from a task id derived from it.
_JOB_ID: Final = "manyhands-job-id"
_DIGITS: Final = 32
_JOB_ID_START: Final = header_start(_JOB_ID, _DIGITS)
# The prefix of each CloudEvents attribute: as used on RabbitMQ, and as in AMQP 1.0.
PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    "ce": ("ce-",),
    "cloudevents": ("cloudEvents_",),
    "both": ("ce-", "cloudEvents_"),
    "none": (),
}


class Extras(Struct, frozen=True):
    """What a message may carry besides its body, as configured."""

    cloudevents: str = "ce"
    cc: bool = False  # a second key, in a header that RabbitMQ also routes by


class _Starts:
    """Headers with texts of constant length, with one prefix."""

    __slots__ = ("id", "sequence", "subject", "time")

    def __init__(self, prefix: str) -> None:
        self.id = header_start(f"{prefix}id", _SEQUENCE_DIGITS)
        self.sequence = header_start(f"{prefix}sequence", _SEQUENCE_DIGITS)
        self.subject = header_start(f"{prefix}subject", 36)
        self.time = header_start(f"{prefix}time", len(NEVER))


class Run(Struct, frozen=True, gc=False):
    """One attempt."""

    run_id: int
    worker_group: str
    worker_id: str


class Status(Struct, frozen=True, gc=False):
    """The task status structure, exactly."""

    task_id: str
    provisioner_id: str
    worker_type: str
    runs: list[Run]
    state: str
    reason: str
    routing: str
    retries: int
    priority: float
    created: str
    deadline: str
    taken_until: str


class _Pending(Struct, frozen=True, gc=False):
    version: str
    status: Status


class _Running(Struct, frozen=True, gc=False):
    version: str
    status: Status
    run_id: int
    logs: str
    # Both spellings: the exchanges were described with dashes, all else with underscores.
    group_dashed: str = field(name="worker-group")
    worker_dashed: str = field(name="worker-id")
    worker_group: str
    worker_id: str


class _Completed(Struct, frozen=True, gc=False):
    version: str
    status: Status
    result: str
    logs: str
    run_id: int
    worker_group: str
    worker_id: str


class _Failed(Struct, frozen=True, gc=False):
    version: str
    status: Status
    run_id: int | UnsetType = UNSET
    worker_group: str | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET


class _Definition(Struct, frozen=True):
    """What a task's own definition adds to its status."""

    routing: str = ""
    created: str = ""


_NO_DEFINITION: Final = _Definition()
_decode_definition = msgspec.json.Decoder(_Definition).decode
_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(at: int) -> str:
    """A time as ISO 8601, in UTC, with milliseconds."""
    seconds, milliseconds = divmod(at, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=4096)
def worker_of(holder: Holder) -> tuple[str, str]:
    """Group and id of a worker; workers of other protocols are grouped by protocol."""
    name = holder.name or holder.address
    if holder.realm == REALM:
        group, slash, worker = name.partition("/")
        if slash and is_identifier(group) and is_identifier(worker):
            return group, worker
    return identifier_of(holder.realm), identifier_of(name)


class Renderer:
    """Renders messages of events. ``find_job`` is called only if an event alone does not
    suffice.
    """

    def __init__(
        self,
        server_name: str,
        base_url: str,
        find_job: Callable[[str], Job | None],
        extras: Extras | None = None,
    ) -> None:
        extras = extras or Extras()
        prefixes = PREFIXES[extras.cloudevents]
        self._starts = [_Starts(prefix) for prefix in prefixes]
        self._cc = extras.cc
        self._base_url = base_url
        self._find_job = find_job
        self._definitions: dict[str, _Definition] = {}
        self._headers = {
            exchange: HeaderTemplate(
                content_type="application/json",
                kind=exchange,
                app_id=server_name,
                headers=pack_headers(
                    (f"{prefix}{name}", text)
                    for prefix in prefixes
                    for name, text in (
                        ("specversion", "1.0"),
                        ("source", f"/{server_name}"),
                        ("type", f"manyhands.{exchange.replace('_', '.')}"),
                        ("dataschema", f"{base_url}/0.2.0/schemas/{exchange}.json"),
                    )
                ),
            )
            for exchange in EXCHANGES
        }

    def render(self, seq: int, event: Event) -> Message | None:
        """The message of an event, or None if it has none."""
        exchange = EXCHANGE_OF.get(event.state)
        if exchange is None:
            return None
        job: Job | None = None
        known = _run_of(event)
        # Nearly every job has only a first run; only further ones need a lookup.
        if event.lease_number > (1 if known is not None else 0):
            job = self._find_job(event.job_id)
        definition = _NO_DEFINITION
        if event.origin.realm == REALM:
            definition = self._definition(event.job_id, job)
        runs = _runs_of(event, known, job)
        status = _status_of(event, exchange, runs[-RUNS_SHOWN_MAX:], definition)
        run = runs[-1] if runs and exchange is not PENDING else None
        where = f"{status.provisioner_id}.{status.worker_type}.{definition.routing}"
        if run is None:
            key = f"{status.task_id}.{PLACEHOLDER}.{PLACEHOLDER}.{PLACEHOLDER}.{where}"
        else:
            key = f"{status.task_id}.{run.run_id}.{run.worker_group}.{run.worker_id}.{where}"
        body = self._body(exchange, status, run)
        headers = self._headers_of(seq, event, status.task_id)
        if self._cc:
            headers += pack_text_list("CC", where)
        if len(runs) > RUNS_SHOWN_MAX:
            headers += pack_headers((("manyhands-runs-cut", "true"),))
        header = self._headers[exchange].pack(len(body), headers, str(seq), event.at // 1000)
        also = where if self._cc else None
        return Message(seq, exchange, key, header, body, also, event.queue)

    def _definition(self, job_id: str, job: Job | None) -> _Definition:
        known = self._definitions.get(job_id)
        if known is not None:
            return known
        job = job or self._find_job(job_id)
        definition = _NO_DEFINITION
        if job is not None and job.metadata:
            definition = _decode_definition(job.metadata)
            if not is_routing(definition.routing):
                definition = _Definition("", definition.created)
        if len(self._definitions) >= _REMEMBERED_MAX:
            self._definitions.clear()
        self._definitions[job_id] = definition
        return definition

    def _headers_of(self, seq: int, event: Event, task_id: str) -> bytes:
        sequence = str(seq).zfill(_SEQUENCE_DIGITS).encode()
        subject = task_id.encode()
        time = instant(event.at).encode()
        headers = b""
        for start in self._starts:
            headers += b"".join(
                (
                    *(start.id, sequence, start.sequence, sequence),
                    *(start.subject, subject, start.time, time),
                )
            )
        job_id = event.job_id
        if len(job_id) == _DIGITS:
            headers += _JOB_ID_START + job_id.encode()
        else:
            headers += pack_headers(((_JOB_ID, job_id),))
        if place_of(event.queue).is_renamed:
            headers += pack_headers((("manyhands-queue", event.queue),))
        return headers

    def _body(self, exchange: str, status: Status, run: Run | None) -> bytes:
        if exchange is PENDING:
            return _encode(_Pending(VERSION, status))
        if run is None:
            return _encode(_Failed(VERSION, status))
        number, group, worker = run.run_id, run.worker_group, run.worker_id
        if exchange is FAILED:
            return _encode(_Failed(VERSION, status, number, group, worker))
        folder = f"{self._base_url}/0.2.0/store/{status.task_id}/runs/{number}"
        logs = f"{folder}/logs.json"
        if exchange is RUNNING:
            return _encode(_Running(VERSION, status, number, logs, group, worker, group, worker))
        result = f"{folder}/result.json"
        return _encode(_Completed(VERSION, status, result, logs, number, group, worker))


def status_of(event: Event, exchange: str, job: Job) -> Status:
    """The status of a job at an event, with everything known about the job."""
    definition = _NO_DEFINITION
    if event.origin.realm == REALM and job.metadata:
        definition = _decode_definition(job.metadata)
    runs = _runs_of(event, _run_of(event), job)
    return _status_of(event, exchange, runs[-RUNS_SHOWN_MAX:], definition)


def _run_of(event: Event) -> Run | None:
    """The run that can be read from an event alone."""
    number = event.lease_number
    if event.state is State.COMPLETED and number == 0:
        number = 1  # completed without a claim, which still counts as a run
    if number == 0 or event.holder is None:
        return None
    return Run(run_id_of(number), *worker_of(event.holder))


def _runs_of(event: Event, known: Run | None, job: Job | None) -> list[Run]:
    """All runs up to the event's own, in order."""
    if job is None:
        return [known] if known is not None else []
    runs: dict[int, Run] = {}
    for attempt in job.attempts:
        if 0 < attempt.number <= event.lease_number:
            number = run_id_of(attempt.number)
            runs[number] = Run(number, *worker_of(attempt.holder))
    lease = job.lease
    if lease is not None and lease.number == event.lease_number:
        number = run_id_of(lease.number)
        runs[number] = Run(number, *worker_of(lease.holder))
    if known is not None:
        runs[known.run_id] = known
    return [runs[number] for number in sorted(runs)]


def _status_of(event: Event, exchange: str, runs: list[Run], definition: _Definition) -> Status:
    ours = event.origin.realm == REALM
    place = place_of(event.queue)
    deadline_at = event.deadline_at
    return Status(
        task_id_of(event.job_id),
        place.provisioner,
        place.worker_type,
        runs,
        _STATE_WORDS.get(exchange, "failed"),
        _reason_of(event),
        definition.routing,
        _retries_of(event),
        event.priority if ours else 0.0,
        definition.created or instant(event.submitted_at),
        instant(deadline_at) if deadline_at is not None else NEVER,
        _taken_until(event),
    )


def _reason_of(event: Event) -> str:
    if event.state is State.CANCELLED:
        return "canceled"
    if event.state is State.FAILED:
        return FAILURES.get(event.reason, "failed")
    return "none"


def _retries_of(event: Event) -> int:
    """Retries left. The first attempt is not a retry, and only charged attempts count."""
    if event.attempts_max < 0:
        return _RETRIES_MAX
    return max(0, min(event.attempts_max - 1 - event.attempts_used, _RETRIES_MAX))


def _taken_until(event: Event) -> str:
    """Until when the run is or was claimed."""
    if event.state is State.LEASED:
        return NEVER if event.expires_at is None else instant(event.expires_at)
    return _NEVER_CLAIMED if event.lease_number == 0 else instant(event.at)
