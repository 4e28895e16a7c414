"""Progress, pieces of results and lines of logs on their way to the server (P59)."""

import asyncio
import contextvars
import threading
from collections import deque
from time import perf_counter
from typing import Final

from manyhands.client.worker.run import Progress, Run, Words
from manyhands.client.worker_stream import Piece, WorkerStream

_GAP_SECONDS: Final = 0.1  # ten notes a second for each job
_UNSENT_BYTES_MAX: Final = 1024 * 1024
_NOTE_COUNT: Final = 8  # of pieces, so that a note stays below the bound of a message
_LOOK_SECONDS: Final = 0.1  # how often a waiting thread looks whether it is still wanted


class Bulletin:
    """Gathers what running jobs report. Tasks call from any thread; the rest is the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: WorkerStream) -> None:
        self._loop = loop
        self._context = contextvars.copy_context()  # not that of a job
        self._thread = threading.get_ident()
        self._stream = stream
        self._due: deque[Run] = deque()
        self._lock = threading.Lock()  # what tasks add, and the loop takes

    def progress(self, run: Run, progress: Progress) -> None:
        """Keeps the latest."""
        with self._lock:
            words = run.words or self._words(run)
            words.progress = progress
        self._call(run, words)

    def emit(self, run: Run, piece: bytes) -> None:
        """Keeps all; a thread that is too far ahead of the connection waits."""
        with self._lock:
            words = run.words or self._words(run)
            words.pieces.append(piece)
            words.unsent += len(piece)
            words.was_sent.clear()
        self._call(run, words)
        if threading.get_ident() == self._thread:
            return  # a coroutine: the loop would wait for itself
        while words.unsent > _UNSENT_BYTES_MAX and run.why is None:
            words.was_sent.wait(_LOOK_SECONDS)

    def log(self, run: Run, line: str, *, warning: bool) -> None:
        """Keeps the latest. Never waits: logging must not hold up a task."""
        with self._lock:
            words = run.words or self._words(run)
            words.lines.append((line, warning))
        self._call(run, words)

    def _words(self, run: Run) -> Words:
        run.words = Words()
        return run.words

    def _call(self, run: Run, words: Words) -> None:
        if not words.is_due:
            words.is_due = True
            self._due.append(run)
            self._loop.call_soon_threadsafe(self._look, context=self._context)

    def _look(self) -> None:
        while self._due:
            run = self._due.popleft()
            words = run.words
            if words is None:
                continue
            wait = words.sent_at + _GAP_SECONDS - perf_counter()
            if wait > 0 and words.unsent <= _UNSENT_BYTES_MAX:
                self._loop.call_later(wait, self.send, run)
            else:
                self.send(run)

    def send(self, run: Run) -> None:
        """Sends what a job has reported. Called before its outcome is, too."""
        words = run.words
        if words is None or run.is_gone:
            return
        with self._lock:
            words.is_due = False
            pieces, words.pieces = words.pieces, []
            progress, words.progress = words.progress, None
            lines = tuple(words.lines)
            words.lines.clear()
        if not pieces and not lines and progress is None:
            return
        words.sent_at = perf_counter()
        held = run.given.held
        items: list[Piece] = [(*held, None, piece, None, False) for piece in pieces]
        items += [(*held, None, None, line, warning) for line, warning in lines]
        if progress is not None:
            items.append((*held, progress, None, None, False))
        size = sum(map(len, pieces))

        def sent(_: object) -> None:
            with self._lock:
                words.unsent -= size
            words.was_sent.set()

        while len(items) > _NOTE_COUNT:
            _ = self._stream.news(items[:_NOTE_COUNT])
            del items[:_NOTE_COUNT]
        self._stream.news(items).add_done_callback(sent)
