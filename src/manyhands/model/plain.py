"""Plain jobs in few words: nothing rare was ever said about them, so little has to be kept.

A plain job was submitted with none of what a submit may ask for besides (delay, dependency, tag,
limit, deadline, name, metadata, …), has a short payload, and has been claimed once at most. Each
value below is its state *and* the operation that brought it there. It says all that the job
(``job``) and the event (``event``) say, which are made from it when somebody looks.

``Event`` and these values have the same names for what counters read.
"""

from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from manyhands.model.events import Event
from manyhands.model.job import Attempt, EndReason, Holder, Job, Lease, Origin, State
from manyhands.model.payload import Encoding
from manyhands.model.policy import Terms
from manyhands.model.reasons import Reason

# Longer payloads and results make a job an ordinary one: the newest events are kept in memory, and
# an event of a plain job is the job itself.
PLAIN_BYTES_MAX: Final = 1_000

_READY: Final = State.READY
_LEASED: Final = State.LEASED
_COMPLETED: Final = State.COMPLETED
_NO_REASON: Final = Reason.NONE


class PlainReady(Struct, frozen=True, gc=False):
    """It was submitted, and is ready."""

    job_id: str
    queue: str
    payload: bytes
    encoding: Encoding
    terms: Terms
    origin: Origin
    priority: float
    position: int
    submitted_at: int
    at: int  # when it was submitted, by the server's clock
    unique_key: bytes | None
    durable_interest: bool
    waiters: tuple[str, ...]
    serial: int = 0  # given by the store, as that of a job

    # As a job has them.
    lease: ClassVar[None] = None
    incarnation: ClassVar[int] = 0

    @property
    def state(self) -> State:
        return _READY

    @property
    def entered_at(self) -> int:
        return self.at

    def job(self) -> Job:
        """The job."""
        return Job(
            job_id=self.job_id,
            serial=self.serial,
            queue=self.queue,
            state=_READY,
            payload=self.payload,
            encoding=self.encoding,
            terms=self.terms,
            origin=self.origin,
            priority=self.priority,
            position=self.position,
            submitted_at=self.submitted_at,
            entered_at=self.at,
            unique_key=self.unique_key,
            durable_interest=self.durable_interest,
            waiters=self.waiters,
        )

    def event(self) -> Event:
        """The event of its submit."""
        return _event(self, self.at, _READY, 0, None, None, 0)


class PlainLeased(Struct, frozen=True, gc=False):
    """It was claimed."""

    ready: PlainReady
    lease: Lease
    # Of those two, for counters.
    queue: str
    holder: Holder
    at: int
    lasted_ms: int

    incarnation: ClassVar[int] = 0

    @property
    def state(self) -> State:
        return _LEASED

    @property
    def job_id(self) -> str:
        return self.ready.job_id

    @property
    def serial(self) -> int:
        return self.ready.serial

    @property
    def position(self) -> int:
        return self.ready.position

    def job(self) -> Job:
        """The job."""
        ready, lease = self.ready, self.lease
        return Job(
            job_id=ready.job_id,
            serial=ready.serial,
            queue=ready.queue,
            state=_LEASED,
            payload=ready.payload,
            encoding=ready.encoding,
            terms=ready.terms,
            origin=ready.origin,
            priority=ready.priority,
            position=ready.position,
            submitted_at=ready.submitted_at,
            entered_at=lease.claimed_at,
            lease_number=1,
            lease=lease,
            unique_key=ready.unique_key,
            durable_interest=ready.durable_interest,
            waiters=ready.waiters,
        )

    def event(self) -> Event:
        """The event of its claim."""
        expires_at, lasted_ms = self.lease.expires_at, self.lasted_ms
        return _event(self.ready, self.at, _LEASED, 1, self.holder, expires_at, lasted_ms)


class PlainCompleted(Struct, frozen=True, gc=False):
    """Its holder completed it."""

    leased: PlainLeased
    at: int
    result: bytes | None
    result_encoding: Encoding
    # Of the lease, for counters.
    queue: str
    holder: Holder
    lasted_ms: int
    # In place of the payload that it was submitted with, and in the encoding of the result.
    payload: bytes | None = None

    lease: ClassVar[None] = None
    incarnation: ClassVar[int] = 0

    @property
    def state(self) -> State:
        return _COMPLETED

    @property
    def job_id(self) -> str:
        return self.leased.ready.job_id

    @property
    def serial(self) -> int:
        return self.leased.ready.serial

    @property
    def position(self) -> int:
        return self.leased.ready.position

    @property
    def waiters(self) -> tuple[str, ...]:
        """Those who waited for its end."""
        return self.leased.ready.waiters

    def attempt(self) -> Attempt:
        """The attempt that succeeded."""
        return completing_attempt(self.leased.lease, self.at)

    def job(self) -> Job:
        """The job as it stays on record."""
        return self._job(())

    def reported(self) -> Job:
        """The job as its worker and those who wait for it see it."""
        return self._job(self.waiters)

    def _job(self, waiters: tuple[str, ...]) -> Job:
        ready, at, payload = self.leased.ready, self.at, self.payload
        return Job(
            job_id=ready.job_id,
            serial=ready.serial,
            queue=ready.queue,
            state=_COMPLETED,
            payload=ready.payload if payload is None else payload,
            encoding=ready.encoding if payload is None else self.result_encoding,
            terms=ready.terms,
            origin=ready.origin,
            priority=ready.priority,
            position=ready.position,
            submitted_at=ready.submitted_at,
            entered_at=at,
            finished_at=at,
            lease_number=1,
            attempts=(self.attempt(),),
            unique_key=ready.unique_key,
            durable_interest=ready.durable_interest,
            waiters=waiters,
            result=self.result,
            result_encoding=self.result_encoding,
        )

    def event(self) -> Event:
        """The event of its end."""
        ready, lasted_ms = self.leased.ready, self.lasted_ms
        return _event(ready, self.at, _COMPLETED, 1, self.holder, None, lasted_ms)


Plain: TypeAlias = PlainReady | PlainLeased | PlainCompleted


def job_of(value: Job | Plain) -> Job:
    """The job that a value stands for."""
    return value if type(value) is Job else value.job()  # type: ignore[union-attr]


def ready_of(job: Job) -> PlainReady:
    """What a plain job was submitted with."""
    return PlainReady(
        job.job_id,
        job.queue,
        job.payload,
        job.encoding,
        job.terms,
        job.origin,
        job.priority,
        job.position,
        job.submitted_at,
        job.entered_at,
        job.unique_key,
        job.durable_interest,
        job.waiters,
        job.serial,
    )


def plain_ready(job: Job) -> PlainReady | None:
    """The value of a plain job that is ready, if it is one."""
    if job.state is not _READY or job.lease_number or len(job.payload) > PLAIN_BYTES_MAX:
        return None
    ready = ready_of(job)
    return ready if ready.job() == job else None  # it says all there is to say


def event_of(entry: Event | Plain) -> Event:
    """The event that an entry of a batch stands for."""
    return entry if type(entry) is Event else entry.event()  # type: ignore[union-attr]


def completing_attempt(lease: Lease, at: int) -> Attempt:
    """The attempt of a lease that ends with the job's completion."""
    return Attempt(
        lease.number, lease.holder, lease.claimed_at, at, EndReason.COMPLETED, lease.token
    )


def attempts_max_of(terms: Terms) -> int:
    """The attempts that terms allow where the queue has no policy."""
    allowed = terms.attempts_max
    return terms.defaults.attempts_max if allowed is None else allowed


def _event(
    ready: PlainReady,
    at: int,
    state: State,
    lease_number: int,
    holder: Holder | None,
    expires_at: int | None,
    lasted_ms: int,
) -> Event:
    return Event(
        at,
        state,
        ready.job_id,
        ready.queue,
        _NO_REASON,
        0,
        lease_number,
        0,
        attempts_max_of(ready.terms),
        holder,
        expires_at,
        ready.priority,
        ready.submitted_at,
        None,
        ready.origin,
        lasted_ms,
    )
