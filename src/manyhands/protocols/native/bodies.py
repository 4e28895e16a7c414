"""Bodies that submit, claim and cancel: strict structures, and the command each becomes."""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Claim,
    ClaimOrder,
    Depart,
    Fail,
    NewJob,
    OnExisting,
)
from manyhands.model.job import EndReason, Failure, Holder, Origin
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    TERMS,
    Backoff,
    OnDependencyFailure,
    OnDuplicate,
    OnExpiry,
    OnUnknownDependency,
    Reentry,
    Terms,
)
from manyhands.model.reasons import as_detail
from manyhands.protocols.native.decoder import (
    Batch,
    OneOrMany,
    bad_body,
    read_id,
    read_ids,
    read_payload,
)
from manyhands.web.envelope import Whole

REALM: Final = "native"
WAIT_SECONDS_MAX: Final = 300.0
GOODBYES_COUNT_MAX: Final = limits.DEPARTED_COUNT_MAX  # leases given back by one command
# The lease if neither the claim, nor the job, nor the queue sets one.
_TERM_MS: Final = 60_000
_NATIVE_TERMS: Final = TERMS["native"]
_NO_WISHES: Final = (None,) * 8


Instant = Annotated[Whole, Meta(description="milliseconds since 1970")]
Attempts = Annotated[Whole, Meta(description="-1: unlimited")]


def said(sentence: str) -> Any:  # noqa: ANN401 - what stands beside a type
    """What a field means, for the OpenAPI document."""
    return Meta(description=sentence)


class BackoffBody(Backoff, frozen=True, forbid_unknown_fields=True):
    """Pauses between retries; unknown keys are refused."""

    first_ms: Whole = 1_000
    ms_max: Whole = 3_600_000

    def plain(self) -> Backoff:
        """The value as stored."""
        return Backoff(self.first_ms, self.factor, self.ms_max, self.jitter)


class Wishes(Struct, forbid_unknown_fields=True, kw_only=True):
    """How a job wants to be treated."""

    attempts_max: Attempts | None = None
    backoff: BackoffBody | None = None
    lease_ms: Annotated[Whole, said("0: no expiry")] | None = None
    attempt_ms_max: Annotated[Whole, said("from claim to end")] | None = None
    on_expiry: OnExpiry | None = None
    reentry: Reentry | None = None
    on_dependency_failure: OnDependencyFailure | None = None
    result_ms: Annotated[Whole, said("how long the result is kept")] | None = None

    def terms(self) -> Terms:
        """The job's terms; for most jobs, the defaults."""
        wishes = (
            self.attempts_max,
            self.backoff.plain() if self.backoff is not None else None,
            self.lease_ms,
            self.attempt_ms_max,
            self.on_expiry,
            self.reentry,
            self.on_dependency_failure,
            self.result_ms,
        )
        if wishes == _NO_WISHES:
            return _NATIVE_TERMS
        return Terms(_NATIVE_TERMS.defaults, *wishes)


_NEW_JOB: Final = {each.name: each.default for each in msgspec.structs.fields(NewJob)}


class JobOptions(Wishes, kw_only=True):
    """What a job to submit may say besides queue and payload."""

    priority: Annotated[float, said("higher goes first")] = 0.0
    delay_ms: Whole = 0
    run_at: Instant | None = None
    deadline_at: Instant | None = None
    unique_key: Annotated[str, said("only one unfinished job of the queue has it")] | None = None
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    on_existing: OnExisting = OnExisting.REFUSE
    namespace: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    limits: Annotated[tuple[str, ...], said("named limits it counts against")] = ()
    depends_on: Annotated[tuple[str, ...], said("ids; in a namespace, names")] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE
    headers: Annotated[dict[str, str], said("for its worker; 8 KiB together")] | None = None

    def job(
        self,
        job_id: str,
        queue: str,
        content: tuple[bytes, Encoding],
        origin: Origin,
        *,
        id_chosen: bool,
    ) -> NewJob:
        """The command's item."""
        payload, encoding = content
        return NewJob(
            job_id=job_id,
            id_chosen=id_chosen,
            queue=queue,
            payload=payload,
            encoding=encoding,
            origin=origin,
            **self.fields(),
        )

    def fields(self) -> dict[str, Any]:
        """The fields of the command's item that follow from the options, but for defaults."""
        key = self.unique_key
        fields = {
            "terms": self.terms(),
            "on_existing": self.on_existing,
            "priority": self.priority,
            "run_at": self.run_at,
            "delay_ms": self.delay_ms,
            "deadline_at": self.deadline_at,
            "unique_key": key.encode() if key is not None else None,
            "on_duplicate": self.on_duplicate,
            "namespace": self.namespace,
            "name": self.name,
            "tags": self.tags,
            "limits": tuple(sorted(set(self.limits))),
            "depends_on": self.depends_on if self.namespace else read_ids(self.depends_on),
            "on_unknown_dependency": self.on_unknown_dependency,
            "headers": self.headers,
        }
        return {name: value for name, value in fields.items() if value != _NEW_JOB[name]}


class NewItem(JobOptions, kw_only=True):
    """A job to submit."""

    queue: str
    id: str | None = None
    payload: Raw = field(default_factory=Raw)
    encoding: Encoding = Encoding.JSON

    def new_job(self, made_id: str, origin: Origin) -> NewJob:
        """The command's item; ``made_id`` is its id unless the submitter chose one."""
        return self.job(
            made_id if self.id is None else self.id.lower(),
            self.queue,
            read_payload(self.payload, self.encoding),
            origin,
            id_chosen=self.id is not None,
        )


class SubmitBatch(Batch[NewItem], forbid_unknown_fields=True):
    """Several jobs to submit."""

    all_or_nothing: bool = False


class ClaimBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for work."""

    queue: str | None = None
    queues: tuple[str, ...] = ()
    id: str | None = None
    count: Annotated[Whole, said("maximum number of jobs")] = 1
    order: ClaimOrder = ClaimOrder.LISTED
    term_ms: Annotated[Whole, said("of the lease; 0: no expiry")] | None = None
    worker: Annotated[str, said("the name of the worker")] | None = None
    wait: Annotated[
        float,
        Meta(
            description="maximum seconds to wait for work",
            extra_json_schema={"minimum": 0, "maximum": WAIT_SECONDS_MAX},
        ),
    ] = 0.0

    def claim(self, tokens: tuple[str, ...], address: str) -> Claim:
        """The command, with a token for each job it may hand out."""
        queues = self.queues if self.queue is None else (self.queue, *self.queues)
        return Claim(
            queues=queues,
            holder=Holder(REALM, self.worker, address),
            tokens=tokens,
            order=self.order,
            term_ms=_TERM_MS if self.term_ms is None else self.term_ms,
            term_of_job=self.term_ms is None,
            job_id=read_id(self.id) if self.id is not None else None,
        )

    def check(self) -> None:
        """Checks what the engine cannot know."""
        if self.queue is None and not self.queues and self.id is None:
            raise bad_body("a claim names a queue, queues, or the id of a job")
        if not 1 <= self.count <= limits.CLAIM_COUNT_MAX:
            raise bad_body(f"count must be between 1 and {limits.CLAIM_COUNT_MAX}")
        if not 0 <= self.wait <= WAIT_SECONDS_MAX:
            raise bad_body(f"wait must be between 0 and {WAIT_SECONDS_MAX:g} seconds")
        if self.term_ms is not None and not 0 <= self.term_ms <= limits.TIME_MS_MAX:
            raise bad_body("term_ms must be between 0 and a hundred years; 0 is no expiry")
        if self.worker is not None:
            check_worker(self.worker)


def check_worker(name: str) -> None:
    """Refuses what cannot be the name of a worker."""
    limit = limits.HOLDER_NAME_BYTES_MAX
    if not (0 < len(name.encode()) <= limit and name.isprintable()):
        raise bad_body(f"a worker's name has 1 to {limit} bytes and no control characters")


class CancelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """One job or several, which may depend on each other."""

    id: str | None = None
    ids: tuple[str, ...] = ()
    with_dependants: bool = True
    reason: str = "cancelled"

    def given_ids(self) -> tuple[str, ...]:
        """The ids as written."""
        return self.ids if self.id is None else (self.id, *self.ids)

    def cancel(self) -> Cancel:
        """The command."""
        ids = self.given_ids()
        return Cancel(
            job_ids=read_ids(ids),
            with_dependants=self.with_dependants,
            detail=as_detail(self.reason),
        )


class RunningItem(Struct, forbid_unknown_fields=True):
    """A job that a worker was running."""

    id: str
    token: str


class DepartBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A worker that leaves or is dead."""

    worker: str
    reason: Annotated[str, said("the message of the failures")] = ""
    running: Annotated[
        tuple[RunningItem, ...],
        Meta(
            description="what fails with it; the rest goes back uncharged",
            extra_json_schema={"maxItems": GOODBYES_COUNT_MAX},
        ),
    ] = ()

    def check(self) -> None:
        """Checks what the engine cannot know."""
        check_worker(self.worker)
        if len(self.running) > GOODBYES_COUNT_MAX:
            raise bad_body(f"at most {GOODBYES_COUNT_MAX} running jobs")

    def commands(self) -> tuple[Depart, Depart]:
        """The command, and the one for what is left after it."""
        running = [(read_id(item.id), item.token) for item in self.running]
        return departure(self.worker, self.reason, running), departure(self.worker, "", ())


def departure(worker: str, reason: str, running: Iterable[tuple[str, str]]) -> Depart:
    """A worker leaves: the jobs it was running, by id and token, fail; others are given back."""
    died = Failure("worker_died", reason)
    return Depart(
        holder=Holder(REALM, worker),
        reason=EndReason.GOODBYE,
        count_max=GOODBYES_COUNT_MAX,
        failed=tuple(
            Fail(job_id=job_id, proof=ByToken(token), failure=died, retry=True)
            for job_id, token in running
        ),
    )


SUBMIT: Final = OneOrMany(NewItem, SubmitBatch)
CLAIM: Final = msgspec.json.Decoder(ClaimBody).decode
CANCEL: Final = msgspec.json.Decoder(CancelBody).decode
DEPART: Final = msgspec.json.Decoder(DepartBody).decode
