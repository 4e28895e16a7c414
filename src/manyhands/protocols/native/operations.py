"""Operations on jobs that exist: what the holder of a lease says, and what operators do."""

from typing import Any, Final

from msgspec import Raw, Struct

from manyhands.model.commands import (
    ByToken,
    Command,
    Complete,
    ExpireLease,
    Fail,
    Move,
    Release,
    Renew,
    Report,
    Requeue,
    SendPartial,
    SetDependencies,
    SetPriority,
    SetTags,
)
from manyhands.model.job import Failure
from manyhands.model.payload import Encoding
from manyhands.model.policy import OnUnknownDependency, Reentry
from manyhands.protocols.native.reading import (
    ABSENT,
    OneOrMany,
    lower,
    read_optional,
    read_payload,
)


class _Named(Struct, forbid_unknown_fields=True, kw_only=True):
    """An operation on one job."""

    id: str

    def command(self) -> Command:
        """What it means to the engine."""
        raise NotImplementedError


class _Proven(_Named, kw_only=True):
    """An operation that only the holder of a lease may do."""

    token: str


class RenewItem(_Proven, kw_only=True):
    """Still at it."""

    term_ms: int | None = None
    payload: Raw = ABSENT
    encoding: Encoding = Encoding.JSON

    def command(self) -> Command:
        payload, encoding = read_optional(self.payload, self.encoding)
        return Renew(
            job_id=self.id.lower(),
            proof=ByToken(self.token),
            term_ms=self.term_ms,
            payload=payload,
            encoding=encoding,
        )


class ProgressItem(_Proven, kw_only=True):
    """How far it is."""

    numerator: int
    denominator: int = 0
    seconds_left: int | None = None
    renew: bool = True

    def command(self) -> Command:
        return Report(
            job_id=self.id.lower(),
            proof=ByToken(self.token),
            numerator=self.numerator,
            denominator=self.denominator,
            seconds_left=self.seconds_left,
            renew=self.renew,
        )


class PartialItem(_Proven, kw_only=True):
    """A piece of the result, or a warning."""

    payload: Raw
    encoding: Encoding = Encoding.JSON
    warning: bool = False

    def command(self) -> Command:
        payload, _ = read_payload(self.payload, self.encoding)
        return SendPartial(
            job_id=self.id.lower(),
            proof=ByToken(self.token),
            payload=payload,
            warning=self.warning,
        )


class CompleteItem(_Proven, kw_only=True):
    """The work is finished."""

    result: Raw = ABSENT
    encoding: Encoding = Encoding.JSON
    replaces_payload: bool = False
    next_queue: str | None = None
    delay_ms: int = 0
    depends_on: tuple[str, ...] = ()

    def command(self) -> Command:
        result, encoding = read_optional(self.result, self.encoding)
        return Complete(
            job_id=self.id.lower(),
            proof=ByToken(self.token),
            result=result,
            encoding=encoding,
            replaces_payload=self.replaces_payload,
            next_queue=self.next_queue,
            delay_ms=self.delay_ms,
            depends_on=lower(self.depends_on),
        )


class FailItem(_Proven, kw_only=True):
    """The attempt failed."""

    code: str = "failed"
    message: str = ""
    payload: Raw = ABSENT
    encoding: Encoding = Encoding.JSON
    retry: bool = True
    delay_ms: int | None = None

    def command(self) -> Command:
        payload, _ = read_payload(self.payload, self.encoding)
        return Fail(
            job_id=self.id.lower(),
            proof=ByToken(self.token),
            failure=Failure(self.code, self.message, payload),
            retry=self.retry,
            delay_ms=self.delay_ms,
        )


class ReleaseItem(_Proven, kw_only=True):
    """Given back untouched."""

    reentry: Reentry | None = None

    def command(self) -> Command:
        return Release(job_id=self.id.lower(), proof=ByToken(self.token), reentry=self.reentry)


class RequeueItem(_Named, kw_only=True):
    """A finished job, once more."""

    queue: str | None = None
    delay_ms: int = 0

    def command(self) -> Command:
        return Requeue(job_id=self.id.lower(), queue=self.queue, delay_ms=self.delay_ms)


class MoveItem(_Named, kw_only=True):
    """Into another queue."""

    queue: str
    delay_ms: int = 0

    def command(self) -> Command:
        return Move(job_id=self.id.lower(), queue=self.queue, delay_ms=self.delay_ms)


class PriorityItem(_Named, kw_only=True):
    """A new priority."""

    priority: float

    def command(self) -> Command:
        return SetPriority(self.id.lower(), self.priority)


class TagsItem(_Named, kw_only=True):
    """Tags to add and to remove."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def command(self) -> Command:
        return SetTags(self.id.lower(), self.add, self.remove)


class DependenciesItem(_Named, kw_only=True):
    """Dependencies to add and to remove."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE

    def command(self) -> Command:
        return SetDependencies(
            job_id=self.id.lower(),
            add=self.add,
            remove=self.remove,
            on_unknown_dependency=self.on_unknown_dependency,
        )


class ExpireItem(_Named, kw_only=True):
    """A lease to end as if its time were up."""

    def command(self) -> Command:
        return ExpireLease(self.id.lower())


# Operations on jobs that are named by their id; the key is the last part of the path.
OPERATIONS: Final[dict[str, OneOrMany[Any]]] = {
    "renew": OneOrMany(RenewItem),
    "progress": OneOrMany(ProgressItem),
    "partial": OneOrMany(PartialItem),
    "complete": OneOrMany(CompleteItem),
    "fail": OneOrMany(FailItem),
    "release": OneOrMany(ReleaseItem),
    "requeue": OneOrMany(RequeueItem),
    "move": OneOrMany(MoveItem),
    "priority": OneOrMany(PriorityItem),
    "tags": OneOrMany(TagsItem),
    "dependencies": OneOrMany(DependenciesItem),
    "expire": OneOrMany(ExpireItem),
}
