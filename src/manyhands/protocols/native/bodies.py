"""Bodies that submit, claim and cancel: strict structures, and how each becomes a command."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from manyhands.model import limits
from manyhands.model.commands import Cancel, Claim, ClaimOrder, NewJob, OnExisting
from manyhands.model.job import Holder, Origin
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
from manyhands.protocols.native.reading import (
    ABSENT,
    OneOrMany,
    bad_body,
    lower,
    read_payload,
)

REALM: Final = "native"
WAIT_SECONDS_MAX: Final = 300.0
# What a claim gives where neither it, nor the job, nor the queue says anything else.
_TERM_MS: Final = 60_000
_NATIVE_TERMS: Final = TERMS["native"]
_NO_WISHES: Final = (None,) * 8


class BackoffBody(Backoff, frozen=True, forbid_unknown_fields=True):
    """As it is stored; a misspelt key is refused."""

    def plain(self) -> Backoff:
        """As it is stored."""
        return Backoff(self.first_ms, self.factor, self.ms_max, self.jitter)


class Wishes(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a job may say about how it is treated."""

    attempts_max: int | None = None
    backoff: BackoffBody | None = None
    lease_ms: int | None = None
    attempt_ms_max: int | None = None
    on_expiry: OnExpiry | None = None
    reentry: Reentry | None = None
    on_dependency_failure: OnDependencyFailure | None = None
    result_ms: int | None = None

    def terms(self) -> Terms:
        """The job's terms; those of most jobs are the defaults."""
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


class NewItem(Wishes, kw_only=True):
    """A job to submit."""

    queue: str
    id: str | None = None
    payload: Raw = ABSENT
    encoding: Encoding = Encoding.JSON
    priority: float = 0.0
    delay_ms: int = 0
    run_at: int | None = None
    deadline_at: int | None = None
    unique_key: str | None = None
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    on_existing: OnExisting = OnExisting.REFUSE
    namespace: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE

    def new_job(self, made_id: str, origin: Origin) -> NewJob:
        """The command's item; ``made_id`` is its id unless the submitter chose one."""
        payload, encoding = read_payload(self.payload, self.encoding)
        key = self.unique_key
        return NewJob(
            job_id=made_id if self.id is None else self.id.lower(),
            id_chosen=self.id is not None,
            queue=self.queue,
            payload=payload,
            encoding=encoding,
            terms=self.terms(),
            origin=origin,
            on_existing=self.on_existing,
            priority=self.priority,
            run_at=self.run_at,
            delay_ms=self.delay_ms,
            deadline_at=self.deadline_at,
            unique_key=key.encode() if key is not None else None,
            on_duplicate=self.on_duplicate,
            namespace=self.namespace,
            name=self.name,
            tags=self.tags,
            limits=tuple(sorted(set(self.limits))),
            depends_on=self.depends_on if self.namespace else lower(self.depends_on),
            on_unknown_dependency=self.on_unknown_dependency,
        )


class ClaimBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Work, please."""

    queue: str | None = None
    queues: tuple[str, ...] = ()
    id: str | None = None
    count: int = 1
    order: ClaimOrder = ClaimOrder.LISTED
    term_ms: int | None = None
    worker: str | None = None
    wait: float = 0.0

    def claim(self, tokens: tuple[str, ...], address: str) -> Claim:
        """The command, with a token for each job that may be handed out."""
        queues = self.queues if self.queue is None else (self.queue, *self.queues)
        return Claim(
            queues=queues,
            holder=Holder(REALM, self.worker, address),
            tokens=tokens,
            order=self.order,
            term_ms=_TERM_MS if self.term_ms is None else self.term_ms,
            term_of_job=self.term_ms is None,
            job_id=self.id.lower() if self.id is not None else None,
        )

    def check(self) -> None:
        """Everything that the engine cannot know about."""
        if self.queue is None and not self.queues and self.id is None:
            raise bad_body("a claim names a queue, queues, or the id of a job")
        if not 1 <= self.count <= limits.CLAIM_COUNT_MAX:
            raise bad_body(f"count must be between 1 and {limits.CLAIM_COUNT_MAX}")
        if not 0 <= self.wait <= WAIT_SECONDS_MAX:
            raise bad_body(f"wait must be between 0 and {WAIT_SECONDS_MAX:g} seconds")
        if self.term_ms is not None and not 0 <= self.term_ms <= limits.TIME_MS_MAX:
            raise bad_body("term_ms must be between 0 and a hundred years; 0 is no expiry")
        if self.worker is not None and not (
            0 < len(self.worker.encode()) <= limits.HOLDER_NAME_BYTES_MAX
            and self.worker.isprintable()
        ):
            limit = limits.HOLDER_NAME_BYTES_MAX
            raise bad_body(f"a worker's name has 1 to {limit} bytes and no control characters")


class CancelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """One job or several, which may depend on each other."""

    id: str | None = None
    ids: tuple[str, ...] = ()
    with_dependants: bool = True
    reason: str = "cancelled"

    def cancel(self) -> Cancel:
        """The command."""
        ids = self.ids if self.id is None else (self.id, *self.ids)
        return Cancel(job_ids=lower(ids), with_dependants=self.with_dependants, reason=self.reason)


SUBMIT: Final = OneOrMany(NewItem)
CLAIM: Final = msgspec.json.Decoder(ClaimBody).decode
CANCEL: Final = msgspec.json.Decoder(CancelBody).decode
