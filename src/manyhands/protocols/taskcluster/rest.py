"""The queue's REST API of version 0.2.0: bodies become commands; jobs become statuses and
documents.

Workers prove a run by its number and their name. The command then uses the token of the lease that
matched, so that nothing can come in between.
"""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from manyhands.model.commands import ByToken, Claim, NewJob
from manyhands.model.events import Event
from manyhands.model.job import FINISHED, EndReason, Failure, Holder, Job, Lease, Origin, State
from manyhands.model.payload import Encoding, as_json_object, as_json_value, from_json_object
from manyhands.model.policy import DEFAULTS, Terms
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.taskcluster import answers
from manyhands.protocols.taskcluster.answers import Resolution
from manyhands.protocols.taskcluster.identifiers import (
    DEFAULT_PROVISIONER,
    IDENTIFIER_RULE,
    RUN_ID_MAX,
    is_identifier,
    is_routing,
    run_id_of,
)
from manyhands.protocols.taskcluster.messages import (
    EXCHANGE_OF,
    PENDING,
    REALM,
    VERSION,
    Status,
    instant,
    status_of,
    worker_of,
)
from manyhands.web.envelope import Whole

CLAIM_MS: Final = 1_200_000
BODY_BYTES_MAX: Final = 10 * 1024 * 1024
SLEEP_SECONDS: Final = 180  # how long a worker should wait if there is no work
PENDING_COUNT_MAX: Final = 1_000
DOCUMENT_BYTES_MAX: Final = 1024 * 1024  # logs.json and result.json
ARTIFACTS_COUNT_MAX: Final = 1_000
LOGS, RESULT = "logs.json", "result.json"
_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+; =-]{1,100}")
# RFC 3339, which is what schemas mean by date-time, not all of ISO 8601.
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_DATE: Final = "a date and time like 2014-02-01T03:22:36.356Z"
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")


class RestError(Exception):
    """A status and a sentence; ``error`` has details about what was sent, if any."""

    def __init__(
        self,
        status: int,
        message: str,
        error: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error = error
        self.headers = headers


class Metadata(Struct, frozen=True, forbid_unknown_fields=True):
    """The owner and description of a task, for people."""

    name: str
    owner: str
    maintainer: str
    description: str | UnsetType = UNSET


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """A task definition as posted."""

    version: str
    provisioner_id: str
    worker_type: str
    routing: str
    retries: Whole
    priority: float
    created: str
    deadline: str
    # Kept as the original text.
    payload: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    metadata: Metadata
    tags: dict[str, str]


class Worker(Struct, frozen=True, forbid_unknown_fields=True):
    """The sending worker, and its run."""

    worker_group: str
    worker_id: str
    run_id: Whole | None = None


class FailedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker that gives up a task, and why."""

    worker_group: str
    worker_id: str
    run_id: int
    message: str = ""


class _Result(Struct, frozen=True):
    """The part of an uploaded result.json that is the job's result."""

    result: Raw | UnsetType = UNSET


class ArtifactsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's artifacts to upload: names and content types."""

    worker_group: str
    worker_id: str
    run_id: Whole
    artifacts: dict[str, str]


# The last two: numbers with more digits, or deeper nesting, than the interpreter allows.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_decode_wanted = msgspec.json.Decoder(ArtifactsWanted).decode
_decode_definition = msgspec.json.Decoder(Definition).decode
_decode_worker = msgspec.json.Decoder(Worker).decode
_decode_failed = msgspec.json.Decoder(FailedRun).decode
_decode_result = msgspec.json.Decoder(_Result).decode
_NO_PAYLOAD: Final = Raw(b"{}")
_encode = msgspec.json.Encoder().encode


def check_identifiers(**words: str) -> None:
    """Raises RestError for the first word that is no identifier, with the rule."""
    for name, text in words.items():
        if not is_identifier(text):
            raise RestError(400, f"{name} {IDENTIFIER_RULE}")


def queue_of(provisioner: str, worker_type: str) -> str:
    """The queue of a worker type."""
    check_identifiers(provisioner_id=provisioner, worker_type=worker_type)
    return worker_type if provisioner == DEFAULT_PROVISIONER else f"{provisioner}/{worker_type}"


def read_task(body: bytes, job_id: str, address: str) -> NewJob:
    """A job from a posted definition."""
    try:
        posted = _decode_definition(body)
    except _UNREADABLE as error:
        raise RestError(400, "the body is not a task definition", str(error)) from None
    problem = _fault_of(posted)
    if problem is not None:
        raise RestError(400, "the body is not a task definition", problem)
    return NewJob(
        job_id=job_id,
        queue=queue_of(posted.provisioner_id, posted.worker_type),
        payload=bytes(posted.payload),
        encoding=Encoding.JSON,
        # Runs are numbered up to 999, so there can be no more.
        terms=Terms(DEFAULTS[REALM], attempts_max=min(posted.retries + 1, RUN_ID_MAX)),
        origin=Origin(REALM, posted.metadata.owner, address),
        priority=posted.priority,
        deadline_at=_instant_of(posted.deadline),
        metadata=_encode(msgspec.structs.replace(posted, payload=_NO_PAYLOAD)),
    )


def _fault_of(posted: Definition) -> str | None:
    about = posted.metadata
    checks = (
        (posted.version == VERSION, f"version must be {VERSION}"),
        (is_routing(posted.routing), "routing has at most 64 printable ASCII characters"),
        (0 <= posted.retries <= 999, "retries must be 0 to 999"),
        (_instant_of(posted.created) is not None, f"created must be {_DATE}"),
        (_instant_of(posted.deadline) is not None, f"deadline must be {_DATE}"),
        (len(about.name) <= 255, "metadata.name has at most 255 characters"),
        (
            len(about.description or "") <= 32768,
            "metadata.description has at most 32768 characters",
        ),
        (_is_email(about.owner), "metadata.owner must be an e-mail address"),
        (_is_email(about.maintainer), "metadata.maintainer must be an e-mail address"),
        (bytes(posted.payload)[:1] == b"{", "payload must be an object"),
        (all(len(text) <= 4096 for text in posted.tags.values()), "tags are at most 4096 long"),
    )
    return next((sentence for holds, sentence in checks if not holds), None)


def _is_email(text: str) -> bool:
    return len(text) <= 255 and _EMAIL.fullmatch(text) is not None


def _instant_of(text: str) -> int | None:
    if _INSTANT.fullmatch(text) is None:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None  # no such date


def read_worker(body: bytes, *, with_run: bool = False) -> Worker:
    """The worker that sent a body."""
    try:
        worker = _decode_worker(body)
    except _UNREADABLE as error:
        sentence = "the request does not name its worker by worker_group and worker_id"
        raise RestError(400, sentence, str(error)) from None
    check_identifiers(worker_group=worker.worker_group, worker_id=worker.worker_id)
    if with_run and worker.run_id is None:
        raise RestError(400, "run_id is missing")
    return worker


def read_failed(body: bytes) -> tuple[Worker, Failure]:
    """The worker that gives up, and its reason, which may be empty."""
    try:
        failed = _decode_failed(body)
    except _UNREADABLE as error:
        raise RestError(400, "the body does not say which run failed", str(error)) from None
    check_identifiers(worker_group=failed.worker_group, worker_id=failed.worker_id)
    worker = Worker(failed.worker_group, failed.worker_id, failed.run_id)
    return worker, Failure("failed", failed.message)


def read_result(job: Job, document: bytes) -> tuple[bytes, Encoding]:
    """The job's result from an uploaded result.json, which is an object: its member ``result`` or,
    without one, the whole object.
    """
    found = _decode_result(document).result
    text = document if isinstance(found, UnsetType) else bytes(found)
    return from_json_object(text, job.payload, job.encoding)


def read_wanted(body: bytes) -> tuple[Worker, dict[str, str]]:
    """The worker, and its artifacts with their types."""
    try:
        wanted = _decode_wanted(body)
    except _UNREADABLE as error:
        raise RestError(400, "the body does not say which artifacts", str(error)) from None
    if len(wanted.artifacts) > ARTIFACTS_COUNT_MAX:
        raise RestError(400, f"at most {ARTIFACTS_COUNT_MAX} artifacts at a time")
    for name, content_type in wanted.artifacts.items():
        if not (0 < len(name.encode()) <= 255 and name.isprintable()):
            raise RestError(400, "the name of an artifact has 1 to 255 printable bytes")
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            # Clients normalise such paths and then request something else.
            raise RestError(400, "the name of an artifact has no empty parts, no . and no ..")
        if not _CONTENT_TYPE.fullmatch(content_type):
            raise RestError(400, f"there is no content type {content_type!r}")
    return Worker(wanted.worker_group, wanted.worker_id, wanted.run_id), wanted.artifacts


def upload_key(lease: Lease, name: str, content_type: str) -> str:
    """The key that authorises an upload: known only to the holder of the lease, for as long as the
    lease lasts.
    """
    text = "\0".join((lease.token, str(lease.number), name, content_type))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def claim_of(worker: Worker, token: str, *, queue: str = "", job_id: str | None = None) -> Claim:
    """A claim on a queue or on one task."""
    holder = Holder(REALM, f"{worker.worker_group}/{worker.worker_id}")
    queues = (queue,) if queue else ()
    return Claim(queues=queues, holder=holder, tokens=(token,), term_ms=CLAIM_MS, job_id=job_id)


def held_by(job: Job, worker: Worker) -> Lease:
    """The lease of that worker's run; raises RestError if there is none."""
    lease = job.lease
    if job.state in FINISHED:
        raise RestError(404, "the task is resolved")
    if lease is None or job.state is not State.LEASED:
        raise RestError(410, f"run {worker.run_id} is over; the task is not claimed")
    if worker_of(lease.holder) != (worker.worker_group, worker.worker_id):
        raise RestError(410, "the task is claimed by another worker")
    number = run_id_of(lease.number)
    if number != worker.run_id:
        raise RestError(410, f"this is run {number}, not run {worker.run_id}")
    return lease


def proof_of(lease: Lease) -> ByToken:
    """The proof that the engine takes."""
    return ByToken(lease.token)


def was_completed_by(job: Job, worker: Worker) -> bool:
    """Whether this worker has already reported the same completion."""
    if job.state is not State.COMPLETED or not job.attempts:
        return False
    last = job.attempts[-1]
    return (
        last.reason is EndReason.COMPLETED
        and run_id_of(last.number) == worker.run_id
        and worker_of(last.holder) == (worker.worker_group, worker.worker_id)
    )


_STATUSES: Final = {
    Why.NOT_ALLOWED: 403,
    Why.UNKNOWN_JOB: 404,
    # It was resolved between the lookup and the command.
    Why.ALREADY_COMPLETED: 404,
    Why.ALREADY_FAILED: 404,
    Why.ALREADY_CANCELLED: 404,
    Why.PAYLOAD_TOO_LARGE: 413,
    Why.METADATA_TOO_LARGE: 413,
    Why.STORE_FULL: 507,
    Why.STORE_FAILED: 503,
    Why.SHUTTING_DOWN: 503,
    Why.UNAVAILABLE: 503,
    Why.INTERNAL: 500,
    Why.NOT_YOUR_LEASE: 410,
    Why.NOT_LEASED: 410,
    Why.NOT_CLAIMABLE: 410,
    Why.QUEUE_FULL: 503,
    Why.TOO_MANY_QUEUES: 503,
    Why.KEY_REUSED: 422,
}


def refused(refusal: Refusal) -> RestError:
    """A refusal of the engine; those not listed mean that the request was wrong."""
    return RestError(_STATUSES.get(refusal.why, 400), refusal.sentence)


def job_status(job: Job) -> Status:
    """The current status of a job."""
    lease = job.lease
    allowed = job.terms.attempts_max
    if allowed is None:
        allowed = job.terms.defaults.attempts_max
    event = Event(
        job.entered_at,
        job.state,
        job.job_id,
        job.queue,
        job.reason,
        job.incarnation,
        job.lease_number,
        job.attempts_used,
        allowed,
        lease.holder if lease is not None else None,
        lease.expires_at if lease is not None else None,
        job.priority,
        job.submitted_at,
        job.deadline_at,
        job.origin,
        0,
    )
    # Blocked and delayed jobs have no state of their own here and count as pending.
    return status_of(event, EXCHANGE_OF.get(job.state, PENDING), job)


def definition_of(job: Job) -> bytes:
    """task.json: the definition as posted, or one made up for the job."""
    posted = _decode_definition(job.metadata) if job.origin.realm == REALM else _definition_for(job)
    payload = Raw(_encode(as_json_object(job.payload, job.encoding)))
    return _encode(msgspec.structs.replace(posted, payload=payload))


def _definition_for(job: Job) -> Definition:
    """A definition of a job that was not submitted as a task."""
    status = job_status(job)
    allowed = job.terms.attempts_max or job.terms.defaults.attempts_max
    # There is no e-mail address; this one names the protocol of the job.
    owner = f"{job.origin.realm}@localhost"
    return Definition(
        version=VERSION,
        provisioner_id=status.provisioner_id,
        worker_type=status.worker_type,
        routing=status.routing,
        retries=RUN_ID_MAX if allowed < 0 else min(allowed - 1, RUN_ID_MAX),
        priority=status.priority,
        created=status.created,
        deadline=status.deadline,
        payload=_NO_PAYLOAD,
        metadata=Metadata(name=(job.name or job.job_id)[:255], owner=owner, maintainer=owner),
        tags=dict.fromkeys(job.tags, ""),
    )


def result_of(job: Job, run_id: int) -> dict[str, Any]:
    """result.json of a run that completed the job."""
    last = job.attempts[-1] if job.attempts else None
    if job.state is not State.COMPLETED or last is None or max(1, run_id_of(last.number)) != run_id:
        raise RestError(404, f"run {run_id} has no result")
    group, worker = worker_of(last.holder)
    return {
        "version": VERSION,
        "artifacts": {},
        "statistics": {"started": instant(last.claimed_at), "finished": instant(last.ended_at)},
        "worker": {"worker_group": group, "worker_id": worker},
        "result": {} if job.result is None else as_json_object(job.result, job.result_encoding),
    }


def logs_of(job: Job, run_id: int) -> dict[str, Any]:
    """logs.json of a run, which may list none."""
    if not 1 <= run_id <= max(1, run_id_of(job.lease_number)):
        raise RestError(404, f"there was no run {run_id}")
    return {"version": VERSION, "logs": {}}


def resolution_of(job: Job, base_url: str) -> Resolution:
    """resolution.json: how a task ended."""
    if job.state not in FINISHED:
        raise RestError(404, "the task is not resolved")
    status = job_status(job)
    found: dict[str, str] = {}
    if status.runs:
        run = status.runs[-1]
        found = {"worker_group": run.worker_group, "worker_id": run.worker_id}
        if job.state is State.COMPLETED:
            folder = f"{base_url}/0.2.0/store/{status.task_id}/runs/{run.run_id}"
            found |= {"result": f"{folder}/result.json", "logs": f"{folder}/logs.json"}
    failure = UNSET if job.failure is None else _failure_of(job.failure)
    return Resolution(version=VERSION, status=status, failure=failure, **found)


def _failure_of(failure: Failure) -> answers.Failure:
    """The failure. Data sent by the worker is included unless the message already says it all."""
    data: Any = UNSET
    if failure.payload and failure.payload != failure.message.encode("utf-8", "replace"):
        data = as_json_value(failure.payload, Encoding.BINARY)
    return answers.Failure(failure.code, failure.message, data)
