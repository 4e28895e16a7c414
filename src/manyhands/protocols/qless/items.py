"""Items of the batches that work on jobs: what they may say, and the commands they become."""

import math
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

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
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, name_of
from manyhands.protocols.qless.reading import ABSENT, BadItem, Items

REALM: Final = "http"
# What a worker is given where neither job nor queue says how long.
TERM_MS: Final = 60_000
_DEFAULTS: Final = DEFAULTS[REALM]
_TERMS: Final = TERMS[REALM]
_SHARED_TERMS_MAX: Final = 1_000
_terms: dict[tuple[int | None, int | None, int | None], Terms] = {}


def milliseconds(seconds: float, what: str) -> int:
    """A duration that a peer wrote in seconds."""
    if not math.isfinite(seconds) or not 0 <= seconds * 1000 <= limits.TIME_MS_MAX:
        raise WrongItemError("invalid_option", f"{what} must be 0 or more seconds")
    return int(seconds * 1000)


def check_size(raw: Raw, bytes_max: int) -> bytes:
    """The JSON text of a value, if it is not too long."""
    text = bytes(raw)
    if len(text) > bytes_max:
        raise WrongItemError("too_large", f"meta has {len(text)} bytes; {bytes_max} are allowed")
    return text


def attempts_of(retries: int | None) -> int | None:
    """Retries are what follows the first attempt; -1 is without end."""
    if retries is None or retries == -1:
        return retries
    if not 0 <= retries < limits.ATTEMPTS_MAX:
        raise WrongItemError("invalid_option", "retries must be -1, 0 or more")
    return retries + 1


def terms_of(retries: int | None, heartbeat: float | None, cutoff: float | None) -> Terms:
    """The terms of a job; jobs that wish the same share them."""
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
    """What the sender of an item goes by: the lease's token, its name, or its address."""
    return ByToken(lease) if lease is not None else ByHolder(REALM, host, address)


class AddItem(Struct):
    """A job to add."""

    meta: Raw
    id: str | None = None
    priority: float = 0.0
    delay: float = 0.0
    retries: int | None = None
    tags: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    depends_missing: Literal["refuse", "ok"] = "refuse"
    heartbeat: float | None = None
    cutoff: float | None = None
    deadline: float | None = None
    move: bool = False
    limits: tuple[str, ...] = ()

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
    """How far a worker is."""

    numerator: int
    denominator: int = 0
    seconds_left: int | None = None


class HeartbeatItem(Struct):
    """A lock to renew, and perhaps news about the job."""

    id: str
    lease: str | None = None
    meta: Raw = ABSENT
    progress: ProgressPart | None = None

    def renew(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Renew:
        """The command."""
        meta, encoding = None, Encoding.JSON
        if bytes(self.meta):
            meta, encoding = from_json_text(check_size(self.meta, rules.meta_bytes_max), like)
        return Renew(
            job_id=rules.read_id(self.id), proof=proof, queue=queue, payload=meta, encoding=encoding
        )

    def report(self, proof: Proof, rules: Rules) -> Report | None:
        """What is to be told besides, once the lock is renewed."""
        told = self.progress
        if told is None:
            return None
        return Report(
            job_id=rules.read_id(self.id),
            proof=proof,
            numerator=told.numerator,
            denominator=told.denominator,
            seconds_left=told.seconds_left,
            renew=False,
        )


class CompleteItem(Struct):
    """Work that is turned in."""

    id: str
    meta: Raw
    lease: str | None = None
    next: str | None = None
    delay: float = 0.0
    depends: tuple[str, ...] = ()

    def complete(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Complete:
        """The command. The new meta is both the result and, from now on, the payload."""
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
        )


class FailItem(Struct):
    """Work that went wrong for good."""

    id: str
    group: str
    message: str = ""
    meta: Raw = ABSENT
    lease: str | None = None

    def fail(self, queue: str, proof: Proof, like: Encoding, rules: Rules) -> Fail:
        """The command."""
        meta, encoding = None, Encoding.JSON
        if bytes(self.meta):
            meta, encoding = from_json_text(check_size(self.meta, rules.meta_bytes_max), like)
        return Fail(
            job_id=rules.read_id(self.id),
            proof=proof,
            failure=Failure(_group(self.group), self.message),
            queue=queue,
            payload=meta,
            encoding=encoding,
        )


class RetryItem(Struct):
    """Work that is to be tried again."""

    id: str
    delay: float | None = None
    group: str | None = None
    message: str = ""
    lease: str | None = None

    def fail(self, queue: str, proof: Proof, _like: Encoding, rules: Rules) -> Fail:
        """The command; without a group, the one for jobs that ran out of retries."""
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
    """The group of failures for jobs that were tried as often as they may."""
    return f"failed-retries-{queue}"


def _group(text: str) -> str:
    if not 0 < len(text) <= limits.TAG_BYTES_MAX or not text.isprintable():
        sentence = f"a group has 1 to {limits.TAG_BYTES_MAX} characters, none of them a control"
        raise WrongItemError("invalid_option", sentence)
    return text


class TakeData(Struct):
    """What ``POST /get`` may say."""

    wait: float = 0.0
    array: bool = False


def bad(error: WrongItemError, job_id: str | None) -> BadItem:
    """An item whose content is wrong, like one that cannot be read at all."""
    return BadItem(error.code, str(error), job_id)


ADD: Final[Items[AddItem]] = Items(AddItem, ("meta",))
HEARTBEAT: Final[Items[Any]] = Items(str | HeartbeatItem, ("id",))
COMPLETE: Final[Items[CompleteItem]] = Items(CompleteItem, ("id", "meta"))
FAIL: Final[Items[FailItem]] = Items(FailItem, ("id", "group"))
RETRY: Final[Items[RetryItem]] = Items(RetryItem, ("id",))
TAKE: Final = msgspec.json.Decoder(TakeData).decode
