"""Operations on existing jobs: reports of lease holders, and changes by operators."""

from typing import Any, Final

from msgspec import Raw, Struct, field

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
from manyhands.protocols.native.decoder import (
    OneOrMany,
    read_id,
    read_ids,
    read_optional,
    read_payload,
)
from manyhands.web.envelope import Whole


class _Named(Struct, forbid_unknown_fields=True, kw_only=True):
    """An operation on one job."""

    id: str

    def command(self) -> Command:
        """The command of the engine."""
        raise NotImplementedError

    def links(self) -> bool:
        """Whether it names other jobs."""
        return False

    def read_links(self) -> None:
        """Normalises the ids of other jobs; in a namespace they are names and stay as they are."""


class _Proven(_Named, kw_only=True):
    """An operation reserved for the holder of a lease."""

    token: str


class RenewItem(_Proven, kw_only=True):
    """A lease to renew."""

    term_ms: Whole | None = None
    payload: Raw = field(default_factory=Raw)
    encoding: Encoding = Encoding.JSON

    def command(self) -> Command:
        payload, encoding = read_optional(self.payload, self.encoding)
        return Renew(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            term_ms=self.term_ms,
            payload=payload,
            encoding=encoding,
        )


class ProgressItem(_Proven, kw_only=True):
    """The progress of a job."""

    numerator: Whole
    denominator: Whole = 0
    seconds_left: Whole | None = None
    renew: bool = True

    def command(self) -> Command:
        return Report(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            numerator=self.numerator,
            denominator=self.denominator,
            seconds_left=self.seconds_left,
            renew=self.renew,
        )


class PartialItem(_Proven, kw_only=True):
    """A partial result or a warning."""

    payload: Raw
    encoding: Encoding = Encoding.JSON
    warning: bool = False

    def command(self) -> Command:
        payload, _ = read_payload(self.payload, self.encoding)
        return SendPartial(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            payload=payload,
            warning=self.warning,
        )


class LogItem(_Proven, kw_only=True):
    """A line for the log of a job."""

    message: str
    warning: bool = False

    def command(self) -> Command:
        return SendPartial(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            payload=self.message.encode("utf-8", "replace"),
            warning=self.warning,
            is_log=True,
        )


class CompleteItem(_Proven, kw_only=True):
    """A completed job."""

    result: Raw = field(default_factory=Raw)
    encoding: Encoding = Encoding.JSON
    replaces_payload: bool = False
    next_queue: str | None = None
    delay_ms: Whole = 0
    depends_on: tuple[str, ...] = ()

    def links(self) -> bool:
        return bool(self.depends_on)

    def read_links(self) -> None:
        self.depends_on = read_ids(self.depends_on)

    def command(self) -> Command:
        result, encoding = read_optional(self.result, self.encoding)
        return Complete(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            result=result,
            encoding=encoding,
            replaces_payload=self.replaces_payload,
            next_queue=self.next_queue,
            delay_ms=self.delay_ms,
            depends_on=self.depends_on,
        )


class FailItem(_Proven, kw_only=True):
    """A failed attempt."""

    code: str = "failed"
    message: str = ""
    payload: Raw = field(default_factory=Raw)
    encoding: Encoding = Encoding.JSON
    retry: bool = True
    delay_ms: Whole | None = None

    def command(self) -> Command:
        payload, encoding = read_payload(self.payload, self.encoding)
        return Fail(
            job_id=read_id(self.id),
            proof=ByToken(self.token),
            failure=Failure(self.code, self.message, payload, encoding),
            retry=self.retry,
            delay_ms=self.delay_ms,
        )


class ReleaseItem(_Proven, kw_only=True):
    """A job given back untouched."""

    reentry: Reentry | None = None

    def command(self) -> Command:
        return Release(job_id=read_id(self.id), proof=ByToken(self.token), reentry=self.reentry)


class RequeueItem(_Named, kw_only=True):
    """A finished job to run again."""

    queue: str | None = None
    delay_ms: Whole = 0

    def command(self) -> Command:
        return Requeue(job_id=read_id(self.id), queue=self.queue, delay_ms=self.delay_ms)


class MoveItem(_Named, kw_only=True):
    """A job to move to another queue."""

    queue: str
    delay_ms: Whole = 0

    def command(self) -> Command:
        return Move(job_id=read_id(self.id), queue=self.queue, delay_ms=self.delay_ms)


class PriorityItem(_Named, kw_only=True):
    """A new priority."""

    priority: float

    def command(self) -> Command:
        return SetPriority(read_id(self.id), self.priority)


class TagsItem(_Named, kw_only=True):
    """Tags to add and to remove."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def command(self) -> Command:
        return SetTags(read_id(self.id), self.add, self.remove)


class DependenciesItem(_Named, kw_only=True):
    """Dependencies to add and to remove."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    on_unknown_dependency: OnUnknownDependency = OnUnknownDependency.REFUSE

    def links(self) -> bool:
        return True

    def read_links(self) -> None:
        self.add, self.remove = read_ids(self.add), read_ids(self.remove)

    def command(self) -> Command:
        return SetDependencies(
            job_id=read_id(self.id),
            add=self.add,
            remove=self.remove,
            on_unknown_dependency=self.on_unknown_dependency,
        )


class ExpireItem(_Named, kw_only=True):
    """A lease to end as if it had expired."""

    def command(self) -> Command:
        return ExpireLease(read_id(self.id))


# Operations on jobs named by id; the key is the last part of the path.
OPERATIONS: Final[dict[str, OneOrMany[Any]]] = {
    "renew": OneOrMany(RenewItem),
    "progress": OneOrMany(ProgressItem),
    "partial": OneOrMany(PartialItem),
    "log": OneOrMany(LogItem),
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
