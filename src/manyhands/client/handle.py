"""A submitted job, as its submitter sees it."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct

from manyhands.client import home
from manyhands.client.courier import Courier
from manyhands.client.errors import JobCancelled, JobFailed, Refused, ResultGone, Unavailable
from manyhands.client.notes import Heard, View
from manyhands.client.outputs import Output
from manyhands.client.requests import Requests

R = TypeVar("R", covariant=True)  # noqa: PLC0105 - the name users see
_NO_ATTEMPTS: Final = ("released", "goodbye")  # how leases end that are not counted
_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
_FINISHED: Final = ("already_completed", "already_failed", "already_cancelled")


def ids_of(jobs: "Iterable[Handle[Any] | str]") -> list[str]:
    """Ids of the jobs to depend on."""
    if isinstance(jobs, Handle | str):
        raise TypeError(f"depends_on is several jobs, such as ({jobs!r},)")
    found = [each.id if isinstance(each, Handle) else each for each in jobs]
    for each in found:
        check_id(each)
    return found


def check_id(job_id: object) -> None:
    """Raises for what cannot be the id of a job."""
    if not isinstance(job_id, str):
        raise TypeError(f"the id of a job is a str, not {job_id!r}")
    if not job_id.isprintable():  # surrogates are not, either
        raise ValueError(f"{job_id!r} is no id of a job")


class Decoder(Protocol):
    """What decodes a result."""

    def decode(self, result: bytes | None, encoding: str | None) -> Any:  # noqa: ANN401
        """Raises LookupError if there is none, ValueError if it does not fit."""


class Failure(Struct, frozen=True):
    """Why an attempt failed."""

    code: str
    message: str


class Status(Struct, frozen=True, kw_only=True):
    """P37: where a job stands, and in ``waits`` the sentences that say why it does not go on.
    ``attempts`` are those that failed or were lost, not the one that runs or has succeeded.
    """

    id: str
    queue: str
    state: str
    attempts: int
    priority: float
    progress: tuple[int, int] | None
    failure: Failure | None
    reason: str | None
    worker: str | None
    submitted_at: datetime
    entered_at: datetime
    finished_at: datetime | None
    run_at: datetime | None
    deadline: datetime | None
    tags: tuple[str, ...]
    headers: dict[str, str]
    waits: tuple[str, ...]


class News(Struct, frozen=True):
    """P38: what happens to a job: progress, a piece of its result, or its end."""

    progress: tuple[int, int] | None = None  # done, and all or 0
    seconds_left: int | None = None
    partial: bytes | None = None
    is_warning: bool = False
    state: str | None = None  # at the end


class Server:
    """What handles ask: the stream, and plain requests."""

    def __init__(self, courier: Courier) -> None:
        self.courier = courier
        self.requests = Requests(courier.places, courier.token, courier.timeout)

    async def job(self, job_id: str) -> dict[str, Any]:
        """Everything about a job, in the home loop. P35: a server that is away for a while is asked
        again.
        """
        path = f"/api/jobs/{quote(job_id, safe='')}"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.courier.timeout
        pause = _RETRY_SECONDS
        while True:
            try:
                found = await asyncio.to_thread(self.requests.request, "GET", path)
            except Unavailable:
                if loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_SECONDS_MAX)
            else:
                return cast("dict[str, Any]", found)

    async def reasons(self, job_id: str) -> tuple[int, str | None]:
        """The attempts of an unsuccessful job, and the dependency that caused its end."""
        try:
            job = await self.job(job_id)
        except Refused:
            return 0, None
        cause = None
        if job["reason"] == "dependency_failed":
            views = await self.courier.look(job["depends_on"])
            cause = next((each.id for each in views if each.state in ("failed", "cancelled")), None)
        ended = [each for each in job["attempts"] if each["reason"] not in _NO_ATTEMPTS]
        return max(job["attempts_used"], len(ended)), cause


class Handle(Generic[R]):
    """A submitted job. Names with ``a`` in front are for coroutines; the handle itself can be
    awaited, too.
    """

    __slots__ = ("__weakref__", "_decoder", "_is_kept", "_server", "_view", "id", "is_pending")

    def __init__(
        self, job_id: str, server: Server, decoder: Decoder, *, is_kept: bool = True
    ) -> None:
        self.id = job_id
        self.is_pending = False  # in a batch that was not sent yet
        self._server = server
        self._decoder = decoder
        self._is_kept = is_kept
        self._view: View | None = None  # once it has finished

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def output(self) -> R:
        """The result to come, as an argument of another job, which waits for it."""
        name = self._server.courier.server_name
        return cast("R", Output(self.id, name, is_kept=self._is_kept))

    # The result.

    def result(self, timeout: float | None = None) -> R:
        """Waits for the job's end. Raises ``TimeoutError``, ``JobFailed``, ``JobCancelled``,
        ``ResultGone``; and ``Unavailable`` if the server stays away.
        """
        view = self._view
        if view is None:
            self.check_sent()
            settle, future = home.for_thread()
            self._server.courier.await_end(self.id, settle)
            try:
                view = cast("View", future.result(timeout))
            except TimeoutError:
                self._server.courier.forget_end(self.id, settle)
                raise self._too_late(timeout) from None
            except BaseException:
                self._server.courier.forget_end(self.id, settle)
                raise
            self._view = view
        if view.state in ("failed", "cancelled"):
            raise _unsuccessful(view, *home.wait(self._server.reasons(self.id)))
        return self._decoded(view)

    def _too_late(self, timeout: float | None) -> TimeoutError:
        advice = "status().waits says what it waits for"
        return TimeoutError(f"job {self.id} did not finish in {timeout} s; {advice}")

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109
        """The same in a coroutine."""
        view = self._view
        if view is None:
            self.check_sent()
            settle, future = home.for_loop()
            self._server.courier.await_end(self.id, settle)
            try:
                async with asyncio.timeout(timeout):
                    view = cast("View", await future)
            except TimeoutError:
                self._server.courier.forget_end(self.id, settle)
                raise self._too_late(timeout) from None
            except BaseException:
                self._server.courier.forget_end(self.id, settle)
                raise
            self._view = view
        if view.state in ("failed", "cancelled"):
            raise _unsuccessful(view, *await home.run(self._server.reasons(self.id)))
        return self._decoded(view)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    def check_sent(self) -> None:
        """Raises RuntimeError while the job waits for the end of its batch."""
        if self.is_pending:
            raise RuntimeError("the batch of this job is sent when its `with` block ends")

    def _decoded(self, view: View) -> R:
        if view.state == "unknown":
            raise ResultGone(self.id, "it is not on record, or no longer")
        try:
            return cast("R", self._decoder.decode(view.result, view.encoding))
        except LookupError:
            raise ResultGone(self.id, "its result was not kept, or is no longer") from None

    def ended(self, view: View) -> None:
        """The end, for those who wait for many at once."""
        self._view = view

    @property
    def courier(self) -> Courier:
        """The way to its server."""
        return self._server.courier

    @property
    def is_ended(self) -> bool:
        """Whether its end has been reported to this handle."""
        return self._view is not None

    @property
    def has_succeeded(self) -> bool:
        """Whether it has ended well, as far as this handle knows."""
        return self._view is not None and self._view.state == "completed"

    @property
    def is_on_record(self) -> bool:
        """Whether the server knew the job when it reported its end."""
        return self._view is not None and self._view.state != "unknown"

    async def unsuccessful(self) -> Exception:
        """Why an ended job did not succeed; in the home loop."""
        assert self._view is not None
        return _unsuccessful(self._view, *await self._server.reasons(self.id))

    # State.

    def status(self) -> Status:
        """Where it stands now."""
        self.check_sent()
        return _status(home.wait(self._server.job(self.id)))

    async def astatus(self) -> Status:
        """The same in a coroutine."""
        self.check_sent()
        return _status(await home.run(self._server.job(self.id)))

    def cancel(self, reason: str = "cancelled") -> bool:
        """P39: cancels the job and those that depend on it; returns whether it was unfinished."""
        self.check_sent()
        try:
            return home.wait(self._server.courier.cancel(self.id, reason))
        except Refused as error:
            if error.code in _FINISHED:
                return False
            raise

    async def acancel(self, reason: str = "cancelled") -> bool:
        """The same in a coroutine."""
        self.check_sent()
        try:
            return await home.run(self._server.courier.cancel(self.id, reason))
        except Refused as error:
            if error.code in _FINISHED:
                return False
            raise

    # News.

    def news(self) -> "NewsOf":
        """P38: pieces that are kept, then news as they come, then the end. For ``for`` and for
        ``async for``.
        """
        self.check_sent()
        return NewsOf(self.id, self._server.courier)

    def anews(self) -> AsyncIterator[News]:
        """The same in a coroutine."""
        return aiter(self.news())


class NewsOf:
    """The news of one job."""

    def __init__(self, job_id: str, courier: Courier) -> None:
        self._id = job_id
        self._courier = courier

    def __iter__(self) -> Iterator[News]:
        woken = threading.Event()
        box = _Box(woken.set)
        self._courier.listen(self._id, box)
        try:
            while not box.is_over:
                woken.wait()
                woken.clear()
                yield from box.take()
        finally:
            self._courier.stop_listening(self._id, box)

    async def __aiter__(self) -> AsyncIterator[News]:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        box = _Box(lambda: loop.call_soon_threadsafe(woken.set))
        self._courier.listen(self._id, box)
        try:
            while not box.is_over:
                await woken.wait()
                woken.clear()
                for news in box.take():
                    yield news
        finally:
            self._courier.stop_listening(self._id, box)


class _Box:
    """News between two threads. A slow reader misses progress, nothing else."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.is_over = False  # the end was taken
        self._wake = wake
        self._lock = threading.Lock()
        self._partials: list[News] = []
        self._taken = 0  # pieces
        self._number = 0  # of the last piece on this connection
        self._progress: News | None = None
        self._end: News | None = None
        self._error: Exception | None = None

    def hear(self, note: Heard | View | Exception) -> None:
        """In the home loop."""
        with self._lock:
            if isinstance(note, View):
                self._end = News(state=note.state)
            elif isinstance(note, Exception):
                self._error = note
            else:
                if note.progress is not None:
                    done, total, seconds_left = (*note.progress, None, None, None)[:3]
                    self._progress = News((done or 0, total or 0), seconds_left)
                if note.partial is not None:
                    self._number += 1
                    if self._number > len(self._partials) + self._taken:
                        self._partials.append(News(None, None, note.partial, note.warning))
        with contextlib.suppress(RuntimeError):  # the reader's loop is closed
            self._wake()

    def restart(self) -> None:
        """Pieces are counted anew: those that have been here are not taken again."""
        self._number = 0

    def take(self) -> list[News]:
        """What has come since the last time."""
        with self._lock:
            found, self._partials = self._partials, []
            self._taken += len(found)
            if self._progress is not None:
                found.append(self._progress)
                self._progress = None
            if self._end is not None:
                found.append(self._end)
                self.is_over = True
            elif self._error is not None:
                if not found:
                    raise self._error
                self._wake()  # it is raised next time
        return found


def _unsuccessful(view: View, attempts: int, cause: str | None) -> Exception:
    if view.state == "failed":
        code, message, details = view.failure or ("failed", "", b"")
        return JobFailed(view.id, code, message, details.decode(errors="replace"), attempts)
    return JobCancelled(view.id, view.reason or "cancelled", cause)


_Instant = int | None


class _Numbers(Struct):
    numerator: int
    denominator: int


class _Named(Struct):
    name: str | None = None


class _Leased(Struct):
    holder: _Named


class _Wait(Struct):
    sentence: str


class _Shown(Struct, kw_only=True):
    """The parts of a job's view that a status is made of."""

    id: str
    queue: str
    state: str
    priority: float = 0.0
    attempts_used: int
    submitted_at: int
    entered_at: int
    finished_at: _Instant = None
    run_at: _Instant = None
    deadline_at: _Instant = None
    progress: _Numbers | None = None
    failure: Failure | None = None
    reason: str | None = None
    lease: _Leased | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    waits: list[_Wait] = []


def _status(job: dict[str, Any]) -> Status:
    shown = msgspec.convert(job, _Shown)
    progress = shown.progress
    return Status(
        id=shown.id,
        queue=shown.queue,
        state=shown.state,
        attempts=shown.attempts_used,
        priority=shown.priority,
        progress=None if progress is None else (progress.numerator, progress.denominator),
        failure=shown.failure,
        reason=shown.reason,
        worker=shown.lease.holder.name if shown.lease is not None else None,
        submitted_at=_moment(shown.submitted_at),
        entered_at=_moment(shown.entered_at),
        finished_at=_moment_or_none(shown.finished_at),
        run_at=_moment_or_none(shown.run_at),
        deadline=_moment_or_none(shown.deadline_at),
        tags=shown.tags,
        headers=shown.headers or {},
        waits=tuple(wait.sentence for wait in shown.waits),
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _moment_or_none(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _moment(milliseconds)
