"""Items of the batches that work on jobs: their fields, and the commands they become."""

import math
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from manyhands.model import limits
from manyhands.model.commands import (
    ByHolder,
    ByToken,
    Complete,
    Fail,
    NewJob,
    OnExisting,
    Proof,
    Renew,
    Report,
)
from manyhands.model.job import Failure, Origin
from manyhands.model.payload import Encoding, from_json_text
from manyhands.model.policy import DEFAULTS, TERMS, OnUnknownDependency, Terms
from manyhands.protocols.qless.decoder import BadItem, Items
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, name_of
from manyhands.protocols.qless.kinds import (
    Id,
    Limits,
    Name,
    Priority,
    Retries,
    Seconds,
    Tags,
    Word,
)
from manyhands.web.envelope import Whole

REALM: Final = "qless"
# The lease if neither job nor queue sets one.
TERM_MS: Final = 60_000
WAIT_SECONDS_MAX: Final = 60.0
_DEFAULTS: Final = DEFAULTS[REALM]
_TERMS: Final = TERMS[REALM]
_SHARED_TERMS_MAX: Final = 1_000
_terms: dict[tuple[int | None, int | None, int | None], Terms] = {}


def milliseconds(seconds: float, what: str) -> int:
    """Converts a duration in seconds, as peers write it."""
    if not math.isfinite(seconds) or not 0 <= seconds * 1000 <= limits.TIME_MS_MAX:
        raise WrongItemError("invalid_option", f"{what} must be 0 or more seconds")
    return int(seconds * 1000)


def check_size(raw: Raw, bytes_max: int) -> bytes:
    """The JSON text of a value, unless it is too long."""
    text = bytes(raw)
    if len(text) > bytes_max:
        raise WrongItemError("too_large", f"meta has {len(text)} bytes; {bytes_max} are allowed")
    return text


def attempts_of(retries: int | None) -> int | None:
    """Retries come after the first attempt; -1 is unlimited."""
    if retries is None or retries == -1:
        return retries
    if not 0 <= retries < limits.ATTEMPTS_MAX:
        raise WrongItemError("invalid_option", "retries must be -1, 0 or more")
    return retries + 1


def terms_of(retries: int | None, heartbeat: float | None, cutoff: float | None) -> Terms:
    """The terms of a job; jobs with equal wishes share one object."""
    if retries is None and heartbeat is None and cutoff is None:
        return _TERMS
    wishes = (
        attempts_of(retries),
        None if heartbeat is None else milliseconds(heartbeat, "heartbeat"),
        None if cutoff is None else milliseconds(cutoff, "cutoff"),
    )
    found = _terms.get(wishes)
    if found is None:
        if len(_terms) >= _SHARED_TERMS_MAX:
            _terms.clear()
        found = _terms[wishes] = Terms(
            _DEFAULTS, attempts_max=wishes[0], lease_ms=wishes[1], attempt_ms_max=wishes[2]
        )
    return found


def proof_of(lease: str | None, host: str | None, address: str) -> Proof:
    """How the sender of an item proves its lease: by token, name or address."""
    return ByToken(lease) if lease is not None else ByHolder(REALM, host, address)


class AddItem(Struct):
    """A job to add."""

    meta: Raw
    id: Id | None = None
    priority: Priority = 0.0
    delay: Seconds = 0.0
    retries: Retries | None = None
    tags: Tags = ()
    depends: tuple[Id, ...] = ()
    depends_missing: Literal["refuse", "ok"] = "refuse"
    heartbeat: Seconds | None = None
    cutoff: Seconds | None = None
    deadline: Seconds | None = None
    move: bool = False
    limits: Limits = ()

    def new_job(self, queue: str, made_id: str, origin: Origin, now: int, rules: Rules) -> NewJob:
        """The command's item; ``made_id`` is its id unless the sender chose one."""
        chosen = self.id is not None
        job_id = made_id if self.id is None else rules.read_id(self.id)
        name = None if self.id is None else name_of(self.id, job_id)
        plain = not (self.delay or self.tags or self.depends or self.limits)
        if plain and self.deadline is None and not self.move:
            return NewJob(
                job_id=job_id,
                queue=queue,
                payload=check_size(self.meta, rules.meta_bytes_max),
                encoding=Encoding.JSON,
                id_chosen=chosen,
                name=name,
                once_per_queue=rules.once_per_queue,
                unless_scheduled=True,
                terms=terms_of(self.retries, self.heartbeat, self.cutoff),
                origin=origin,
                priority=self.priority,
            )
        missing_ok = self.depends_missing == "ok"
        deadline = self.deadline
        return NewJob(
            job_id=job_id,
            queue=queue,
            payload=check_size(self.meta, rules.meta_bytes_max),
            encoding=Encoding.JSON,
            id_chosen=chosen,
            name=name,
            on_existing=OnExisting.MOVE if self.move else OnExisting.REFUSE,
            once_per_queue=rules.once_per_queue,
            unless_scheduled=True,
            terms=terms_of(self.retries, self.heartbeat, self.cutoff),
            origin=origin,
            priority=self.priority,
            delay_ms=milliseconds(self.delay, "delay"),
            deadline_at=None if deadline is None else now + milliseconds(deadline, "deadline"),
            tags=tuple(dict.fromkeys(self.tags)),
            limits=tuple(sorted(set(self.limits))),
            depends_on=tuple(rules.read_id(text) for text in self.depends),
            on_unknown_dependency=(
                OnUnknownDependency.SATISFIED if missing_ok else OnUnknownDependency.REFUSE
            ),
        )


class ProgressPart(Struct):
    """The progress of a job."""

    numerator: Whole
    denominator: Whole = 0
    seconds_left: Whole | None = None


def _new_meta(meta: Raw, like: Encoding, rules: Rules) -> tuple[bytes | None, Encoding]:
    """The payload from now on, or None if it stays."""
    if not bytes(meta):
        return None, Encoding.JSON
    return from_json_text(check_size(meta, rules.meta_bytes_max), like)


class HeartbeatItem(Struct):
    """A lock to renew, optionally with progress or new data."""

    id: Id
    lease: str | None = None
    meta: Raw = field(default_factory=Raw)
    progress: ProgressPart | None = None

    def renew(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Renew:
        """The command."""
        meta, encoding = _new_meta(self.meta, like, rules)
        return Renew(
            job_id=rules.read_id(self.id), proof=proof, queue=queue, payload=meta, encoding=encoding
        )

    def report(self, proof: Proof, rules: Rules) -> Report | None:
        """What the heartbeat reports besides, once the lock is renewed."""
        progress = self.progress
        if progress is None:
            return None
        return Report(
            job_id=rules.read_id(self.id),
            proof=proof,
            numerator=progress.numerator,
            denominator=progress.denominator,
            seconds_left=progress.seconds_left,
            renew=False,
        )


class CompleteItem(Struct):
    """A completed item of work."""

    id: Id
    meta: Raw
    lease: str | None = None
    next: Name | None = None
    delay: Seconds = 0.0
    depends: tuple[Id, ...] = ()

    def complete(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Complete:
        """The command. The new meta is both the result and the payload from now on."""
        if self.next is None and (self.delay or self.depends):
            raise WrongItemError("invalid_item", "delay and depends need next")
        result, encoding = from_json_text(check_size(self.meta, rules.meta_bytes_max), like)
        return Complete(
            job_id=rules.read_id(self.id),
            proof=proof,
            result=result,
            encoding=encoding,
            replaces_payload=True,
            queue=queue,
            next_queue=self.next,
            delay_ms=milliseconds(self.delay, "delay") if self.delay else 0,
            depends_on=tuple([rules.read_id(text) for text in self.depends]),
            repeated_exactly=True,
        )


class FailItem(Struct):
    """Work that failed for good."""

    id: Id
    group: Word
    message: str = ""
    meta: Raw = field(default_factory=Raw)
    lease: str | None = None

    def fail(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Fail:
        """The command."""
        meta, encoding = _new_meta(self.meta, like, rules)
        return Fail(
            job_id=rules.read_id(self.id),
            proof=proof,
            failure=Failure(_group(self.group), self.message),
            queue=queue,
            payload=meta,
            encoding=encoding,
        )


class RetryItem(Struct):
    """Work to be tried again."""

    id: Id
    delay: Seconds | None = None
    group: Word | None = None
    message: str = ""
    lease: str | None = None

    def fail(self, queue: str, proof: Proof, _like: Encoding, rules: Rules) -> Fail:
        """The command; the default group is that of jobs that ran out of retries."""
        group = out_of_retries(queue) if self.group is None else _group(self.group)
        delay = self.delay
        return Fail(
            job_id=rules.read_id(self.id),
            proof=proof,
            failure=Failure(group, self.message),
            retry=True,
            delay_ms=None if delay is None else milliseconds(delay, "delay"),
            queue=queue,
        )


def out_of_retries(queue: str) -> str:
    """The failure group of jobs that used up their attempts."""
    return f"failed-retries-{queue}"


def _group(text: str) -> str:
    if not 0 < len(text) <= limits.TAG_BYTES_MAX or not text.isprintable():
        sentence = f"a group has 1 to {limits.TAG_BYTES_MAX} characters and no control characters"
        raise WrongItemError("invalid_option", sentence)
    return text


class TakeData(Struct):
    """The data of ``POST /get``."""

    wait: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": WAIT_SECONDS_MAX})] = (
        0.0
    )
    array: bool = False


def bad(error: WrongItemError, job_id: str | None) -> BadItem:
    """An item with wrong content, reported like an unreadable one."""
    return BadItem(error.code, str(error), job_id)


ADD: Final[Items[AddItem]] = Items(AddItem, ("meta",))
HEARTBEAT: Final[Items[Any]] = Items(Id | HeartbeatItem, ("id",))
COMPLETE: Final[Items[CompleteItem]] = Items(CompleteItem, ("id", "meta"))
FAIL: Final[Items[FailItem]] = Items(FailItem, ("id", "group"))
RETRY: Final[Items[RetryItem]] = Items(RetryItem, ("id",))
TAKE: Final = msgspec.json.Decoder(TakeData).decode
