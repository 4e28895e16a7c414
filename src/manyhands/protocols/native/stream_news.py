"""News of watched jobs: the pieces that are kept, then progress and pieces as they are reported.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections.abc import Callable, Iterable
from functools import partial

from manyhands.model.job import Job, Progress
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.stream_hub import Hub, Piece, Socket, Watcher


class _Followed:
    """What the client knows about a job."""

    __slots__ = ("has_ended", "is_loading", "is_stale", "progress", "sent")

    def __init__(self) -> None:
        self.sent = 0  # the number of the last piece
        self.progress: Progress | None = None
        self.is_loading = False
        self.is_stale = False  # there are pieces that were neither sent nor loaded
        self.has_ended = False


class News:
    """ST23: the news of one stream. Nothing is queued for a peer that does not read, or while
    pieces are loaded: they are on record, and are loaded later.
    """

    def __init__(
        self,
        socket: Socket,
        hub: Hub,
        watcher: Watcher,
        say: Callable[[bytes], None],
        end: Callable[[str], None],
    ) -> None:
        self._socket = socket
        self._hub = hub
        self._watcher = watcher
        self._say = say
        self._end = end  # shows the end of a job, after its last piece
        self._followed: dict[str, _Followed] = {}

    def follow(self, job_id: str) -> None:
        """Begins with the pieces that are kept."""
        if job_id not in self._followed:
            found = self._followed[job_id] = _Followed()
            self._hub.follow(self._watcher, job_id)
            self._load(job_id, found)

    def forget(self, job_id: str) -> None:
        """The client no longer wants news of the job."""
        self._followed.pop(job_id, None)

    def forget_all(self) -> None:
        """The stream is over."""
        self._followed.clear()

    def hear(self, job: Job, pieces: Iterable[Piece]) -> None:
        """The job changed, or there are new pieces of its result."""
        found = self._followed.get(job.job_id)
        if found is None:
            return
        if found.is_loading or found.is_stale or self._socket.is_behind:
            found.is_stale = True
            return
        self._show(job.job_id, found, pieces)
        self._show_progress(job.job_id, found, job.progress)

    def ends(self, job_id: str) -> bool:
        """The job has finished. Returns whether that is to be shown now, rather than later by
        ``end``.
        """
        found = self._followed.get(job_id)
        if found is not None and (found.is_loading or found.is_stale):
            found.has_ended = True
            return False
        self.forget(job_id)
        return True

    def go_on(self) -> None:
        """The peer reads again."""
        for job_id, found in list(self._followed.items()):
            if found.is_stale and not found.is_loading:
                self._load(job_id, found)

    def _load(self, job_id: str, found: _Followed) -> None:
        found.is_loading, found.is_stale = True, False
        self._hub.pieces(job_id, partial(self._loaded, job_id, found))

    def _loaded(
        self, job_id: str, found: _Followed, pieces: Iterable[Piece], progress: Progress | None
    ) -> None:
        if self._followed.get(job_id) is not found:
            return  # forgotten meanwhile
        found.is_loading = False
        self._show(job_id, found, pieces)
        if self._socket.is_behind:
            found.is_stale = True  # until it reads again
        elif found.is_stale:
            self._load(job_id, found)
        elif found.has_ended:
            self.forget(job_id)
            self._end(job_id)
        else:
            self._show_progress(job_id, found, progress)

    def _show(self, job_id: str, found: _Followed, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if self._socket.is_behind:
                found.is_stale = True
                return
            if piece.number > found.sent:
                found.sent = piece.number
                if piece.is_log:
                    continue  # for those who look at the job, not for those who wait for it
                self._say(wire.heard(job_id, None, piece.payload, warning=piece.warning))

    def _show_progress(self, job_id: str, found: _Followed, progress: Progress | None) -> None:
        if progress is not None and progress != found.progress:
            found.progress = progress
            told = (progress.numerator, progress.denominator, progress.seconds_left)
            self._say(wire.heard(job_id, told, None))
