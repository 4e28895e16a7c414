"""A command that is run for a task: in its own session, ended together with all its child
processes, with a bound on how much of its output is kept.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Final

from msgspec import Struct

from manyhands.cli.guardian import Guardian
from manyhands.dispatch.clock import Clock

_KEPT_BYTES: Final = 64 * 1024
_FAILURE_BYTES: Final = 2_000
_READ_BYTES: Final = 64 * 1024
# How long processes left behind by a command may keep writing before they are ended.
_LINGER_MS: Final = 1_000
# Polling interval where the exit of a process is not an event to wait for.
_LOOK_MS: Final = 50


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended."""

    code: int | None  # None: ended by a signal, or could not be started
    signal: int | None = None
    failure: str | None = None  # None: it succeeded
    complaint: str = ""  # the end of its standard error, if it failed
    out: bytes = b""
    timed_out: bool = False


class Child:
    """One command. ``run`` is called once; ``stop`` from any thread, any number of times.

    The last ``kept_bytes`` of each of its streams are kept; ``logs`` get all of both.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        data: bytes,
        variables: Mapping[str, str],
        guardian: Guardian,
        kill_after_ms: float,
        ms_max: float | None = None,
        kept_bytes: int = _KEPT_BYTES,
        logs: tuple[IO[bytes], IO[bytes]] | None = None,
    ) -> None:
        self._words = words
        self._data = memoryview(data)
        self._variables = variables
        self._guardian = guardian
        self._kill_after_ms = kill_after_ms
        self._ms_max = ms_max
        self._clock = Clock()
        self._stopped = threading.Event()
        self._ear, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._lock = threading.Lock()  # guards the bell, which is closed at the end
        out, err = logs or (None, None)
        self._kept = (_Tail(out, kept_bytes), _Tail(err, kept_bytes))
        self._timed_out = False

    def stop(self) -> None:
        """Ends it: SIGTERM to its group, and SIGKILL if that does not help in time."""
        self._stopped.set()
        with self._lock:
            if self._bell >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._bell, b"!")

    def run(self) -> Ended:
        """Starts it, feeds it, collects its output, and waits until it ends."""
        try:
            process = subprocess.Popen(  # noqa: S603 - running them is the purpose
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._variables,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._close()
            return Ended(code=None, failure=f"{self._words[0]} cannot be run: {error}")
        self._guardian.watch(process.pid)
        try:
            self._attend(process)
        finally:
            # The leader is not reaped yet, so the group's id cannot belong to other processes.
            _signal_group(process.pid, signal.SIGKILL)
            code = process.wait()
            self._guardian.forget(process.pid)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._close()
        return self._ended(code)

    def _close(self) -> None:
        with self._lock:
            os.close(self._bell)
            os.close(self._ear)
            self._bell = -1

    def _attend(self, process: "subprocess.Popen[bytes]") -> None:
        """Waits until it has exited and its output is complete."""
        now = self._clock.monotonic_ms
        stop_at = now() + self._ms_max if self._ms_max is not None else None
        kill_at: float | None = None
        over_at: float | None = None  # set once it has exited; its children may still write
        with _Streams(process, self._data, self._kept, self._ear) as streams:
            while streams.are_open or over_at is None:
                due = min(at for at in (stop_at, kill_at, over_at, now() + 3.6e6) if at is not None)
                streams.attend(due - now(), is_over=over_at is not None)
                if over_at is None and _has_exited(process.pid):
                    over_at = now() + _LINGER_MS
                    stop_at = None
                if over_at is not None and now() >= over_at:
                    return
                if stop_at is not None and now() >= stop_at:
                    stop_at = None
                    self._timed_out = True
                if kill_at is None and (self._timed_out or self._stopped.is_set()):
                    _signal_group(process.pid, signal.SIGTERM)
                    _signal_group(
                        process.pid, signal.SIGCONT
                    )  # a stopped process would not receive it
                    kill_at = now() + self._kill_after_ms
                elif kill_at is not None and now() >= kill_at:
                    _signal_group(process.pid, signal.SIGKILL)
                    kill_at = now() + _LINGER_MS

    def _ended(self, code: int) -> Ended:
        out, err = (tail.data() for tail in self._kept)
        if self._timed_out and self._ms_max is not None:
            ended = f"took longer than {self._ms_max / 1000:g} s"
        elif code == 0:
            return Ended(code=0, out=out)
        else:
            ended = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        text = err[-_FAILURE_BYTES:].decode(errors="replace").strip()
        return Ended(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            failure=f"{ended}: {text}" if text else ended,
            complaint=text,
            out=out,
            timed_out=self._timed_out,
        )


class _Tail:
    """The tail of a stream; all of it goes into a file, if there is one."""

    def __init__(self, file: IO[bytes] | None, bytes_max: int) -> None:
        self._file = file
        self._bytes_max = bytes_max
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(chunk)
            except OSError:
                self._file = None  # a full log disk is not a failure of the command
        self._data += chunk
        if len(self._data) > 2 * self._bytes_max:
            del self._data[: -self._bytes_max]

    def data(self) -> bytes:
        return bytes(self._data[-self._bytes_max :])


class _Streams:
    """The streams of a command, and the other events to wait for meanwhile."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        data: memoryview,
        kept: tuple[_Tail, _Tail],
        ear: int,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._data = data
        self._exit: int | None = None
        self._outputs = 2
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = process.stdin
        if data:
            os.set_blocking(self._stdin.fileno(), False)
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        else:
            self._stdin.close()
        for stream, tail in zip((process.stdout, process.stderr), kept, strict=True):
            self._selector.register(stream, selectors.EVENT_READ, tail)
        self._ear = ear
        self._selector.register(ear, selectors.EVENT_READ)
        with contextlib.suppress(AttributeError, OSError):  # not available everywhere
            self._exit = os.pidfd_open(process.pid)
            self._selector.register(self._exit, selectors.EVENT_READ)

    def __enter__(self) -> "_Streams":
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        if self._exit is not None:
            os.close(self._exit)

    @property
    def are_open(self) -> bool:
        """Whether a process may still write."""
        return self._outputs > 0

    def attend(self, ms: float, *, is_over: bool) -> None:
        """Waits for the next event and handles what is ready."""
        if self._exit is None and not is_over:
            ms = min(ms, _LOOK_MS)
        for key, _ in self._selector.select(max(0.0, ms / 1000)):
            if key.fileobj is self._stdin:
                self._feed()
            elif isinstance(key.data, _Tail):
                chunk = os.read(key.fd, _READ_BYTES)
                if chunk:
                    key.data.add(chunk)
                else:
                    self._selector.unregister(key.fileobj)
                    self._outputs -= 1
            elif key.fd == self._ear:
                os.read(self._ear, _READ_BYTES)
            else:  # it has exited, which happens once
                self._selector.unregister(key.fileobj)

    def _feed(self) -> None:
        try:
            self._data = self._data[os.write(self._stdin.fileno(), self._data[:_READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self._data = self._data[:0]  # it has closed its standard input
        if not self._data:
            self._selector.unregister(self._stdin)
            self._stdin.close()


def _has_exited(pid: int) -> bool:
    """Whether it has exited, without reaping it: after that its id could be reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
