"""The supervisor of ``manyhands worker``: starts children, vouches for them, reports their deaths,
stops them. It imports nothing of the user's.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from manyhands.client.address import places
from manyhands.client.worker import messages, terminal, voucher
from manyhands.client.worker.child_process import ChildProcess, Exit
from manyhands.client.worker.endpoint import Endpoint
from manyhands.client.worker.names import drawn_name
from manyhands.client.worker.options import SupervisorOptions
from manyhands.client.worker.page import Begun
from manyhands.client.worker.records import write_records
from manyhands.client.worker.reload import FileWatch
from manyhands.client.worker.standstill import Standstill
from manyhands.client.worker.totals import Totals
from manyhands.client.worker.view import LiveView
from manyhands.client.worker_stream import WorkerStream

VARIABLE: Final = "MANYHANDS_WORKER_SUPERVISOR"
_RESTART_SECONDS: Final = 0.1
_RESTART_SECONDS_MAX: Final = 10.0
_STEADY_SECONDS: Final = 10.0  # a child that lived so long does not slow the next one down
_STUCK_SECONDS: Final = 15.0  # how much longer than its grace a child may take to stop
_HURRY_SECONDS: Final = 5.0
_FAREWELL_SECONDS: Final = 5.0
_NAMED_MAX: Final = 8  # jobs, in one line of the log
_log: Final = logging.getLogger("manyhands.worker")


class Supervisor:
    """Keeps so many children running until a signal."""

    def __init__(self, options: SupervisorOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._children: dict[str, ChildProcess] = {}
        self._standstills: dict[str, Standstill] = {}
        self._started_at: dict[str, float] = {}
        self._stream: WorkerStream | None = None
        self._connection: messages.Connection | None = None
        self._is_stopping = False
        self._signals = 0
        self._exit_code = 0
        self._was_ready = False
        self._has_lead = False
        self._pause = _RESTART_SECONDS
        self._changed = asyncio.Event()
        self._files = FileWatch()
        self._is_waiting_for_change = False
        self._shown = ""  # why the app cannot be loaded
        self._farewells: set[asyncio.Future[None]] = set()  # unanswered reports on ended children
        self._timers: list[asyncio.TimerHandle] = []
        self.totals = Totals()

    @property
    def children(self) -> Sequence[ChildProcess]:
        """Those that live."""
        return tuple(self._children.values())

    async def run(self) -> int:
        """The exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        endpoint = Endpoint(self) if self._options.metrics is not None else None
        if endpoint is not None:
            try:
                await endpoint.open(self._options.metrics or "")
            except ValueError as error:
                sys.stderr.write(f"manyhands: {error}\n")
                return 1
        view = LiveView(self) if terminal.has_view(self._options.log_format) else None
        for _ in range(self._options.processes):
            self._start()
        look = self._loop.create_task(self._look())
        while self._children or not self._is_stopping:
            self._changed.clear()
            await self._changed.wait()
        look.cancel()
        if view is not None:
            view.close()
        if endpoint is not None:
            await endpoint.close()
        await self._say_goodbye()
        return self._exit_code

    # Children.

    def _start(self) -> None:
        if self._is_stopping:
            return
        is_lead, self._has_lead = not self._has_lead, True
        name = drawn_name(self._options.name)
        child = ChildProcess(
            name,
            self._options,
            self._folder,
            is_lead=is_lead,
            heard=lambda *heard: self._in_loop(self._on_message, *heard),
            ended=lambda *ended: self._in_loop(self._on_end, *ended),
        )
        self._children[name] = child
        self._standstills[name] = Standstill(child, self._loop.time())
        self._started_at[name] = self._loop.time()
        self._changed.set()

    def _in_loop(self, function: object, *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *values)  # type: ignore[arg-type]

    def _on_message(self, child: ChildProcess, message: messages.Message) -> None:
        match message:
            case messages.Connection():
                if message != self._connection:
                    self._connect(message)
            case messages.Modules():
                self._files.add(message.files)
            case messages.Unloadable():
                self._show_once(message.text)
            case messages.Ready():
                child.is_ready = self._was_ready = True
            case messages.Leaving():
                child.is_leaving = True
            case messages.Stalled():
                self._relieve(child)
            case messages.Figures():
                child.figures = message
        self._changed.set()

    def _show_once(self, text: str) -> None:
        """Every child has the same to say."""
        if text != self._shown:
            self._shown = text
            sys.stderr.write(text)
            sys.stderr.flush()

    def _connect(self, connection: messages.Connection) -> None:
        if self._stream is not None:
            self._closing = self._loop.create_task(self._stream.close())
        self._connection = connection
        self._stream = WorkerStream(
            places(connection.server, connection.trust),
            voucher.Overseer(),
            name=None,
            token=connection.token,
        )
        self._stream.open()

    def _on_end(self, child: ChildProcess, how: Exit) -> None:
        """P49: what was running is to blame, what was waiting is not."""
        del self._children[child.name], self._standstills[child.name]
        lived = self._loop.time() - self._started_at.pop(child.name)
        self.totals.keep(child.figures)
        # A task may end its process with code 0, too.
        is_death = not child.was_killed and (how.code != 0 or not child.is_leaving)
        begun = child.page.begun() if is_death else []
        child.close()
        if is_death and how.code != messages.UNLOADABLE:
            ran = named(begun)
            _log.error("%s, pid %d: %s, while it ran %s", child.name, child.pid, how, ran)
            self.totals.deaths += 1
        if self._stream is not None and how.code != messages.UNLOADABLE:  # else it took no work
            self._report_end(child.name, str(how), [each.held for each in begun])
        if not self._is_stopping:
            self._replace(child, how, lived)
        self._changed.set()

    def _report_end(self, name: str, reason: str, running: list[tuple[str, str]]) -> None:
        assert self._stream is not None
        stream = self._stream
        answered = stream.depart(name, reason, running)

        def check(done: "asyncio.Future[None]") -> None:
            self._farewells.discard(done)
            error = None if done.cancelled() else done.exception()
            if error is not None and stream.was_open:  # else the child held nothing
                _log.error("the end of %s could not be reported: %s", name, error)

        self._farewells.add(answered)
        answered.add_done_callback(check)

    def _replace(self, child: ChildProcess, how: Exit, lived: float) -> None:
        if how.code == messages.UNLOADABLE and (self._options.reload or not self._was_ready):
            self._has_lead = False
            if self._options.reload:
                if not self._is_waiting_for_change:
                    _log.error("waiting for a change of the code")
                self._is_waiting_for_change = True
            else:
                self._exit_code = 1
                self._is_stopping = True
            return
        if child.is_relieved:
            return
        if child.is_leaving:
            self._start()
            return
        if lived >= _STEADY_SECONDS:
            self._pause = _RESTART_SECONDS
        self._timers.append(self._loop.call_later(self._pause, self._start))
        self._pause = min(_RESTART_SECONDS_MAX, self._pause * 2)

    def _relieve(self, child: ChildProcess) -> None:
        """P49: a fresh child runs what has to run alone, and what comes after it."""
        is_room = len(self._children) < 2 * self._options.processes
        if is_room and not child.is_leaving and not self._is_stopping:
            _log.info("%s finishes its jobs; another process takes its place", child.name)
            child.is_relieved = True
            child.order("drain inf")
            self._start()

    # Vouching, and changes of files.

    async def _look(self) -> None:
        vouched_at = float("-inf")
        known = 0
        while True:
            terms = [child.page.read()["shortest_term_ms"] for child in self.children]
            due = voucher.interval(min((term for term in terms if term), default=0))
            now = self._loop.time()
            if self._stream is not None and (now - vouched_at >= due or len(terms) != known):
                known = len(terms)
                vouched_at = now
                self._stream.vouch([child.name for child in self.children])
            if self._stream is not None:
                for standstill in tuple(self._standstills.values()):
                    standstill.look(self._stream, now)
            if self._options.reload and self._files.is_changed() and not self._is_stopping:
                self._reload()
            await asyncio.sleep(min(voucher.LOOK_SECONDS, due / 2))

    def _reload(self) -> None:
        """P53: new children for new code."""
        _log.info("the code has changed")
        self._has_lead = False
        self._shown = ""
        for child in self.children:
            child.order("drain 0")
        if self._is_waiting_for_change:
            self._is_waiting_for_change = False
            for _ in range(self._options.processes - len(self._children)):
                self._start()

    # Stopping.

    def _on_signal(self) -> None:
        """P51: the first signal drains, the second gives everything back now."""
        self._signals += 1
        self._is_stopping = True
        for timer in self._timers:
            timer.cancel()
        grace = self._options.grace
        if self._signals == 1:
            _log.info(
                "stopping: running jobs may take %g s more; a second signal gives them back now",
                grace,
            )
            for child in self.children:
                child.order(f"drain {grace}")
            self._loop.call_later(grace + _STUCK_SECONDS, self._kill_all)
        else:
            self._exit_code = 1
            for child in self.children:
                child.order("stop")
            self._loop.call_later(_HURRY_SECONDS, self._kill_all)
        self._changed.set()

    def _kill_all(self) -> None:
        for child in self.children:
            _log.error("%s does not stop, and is killed; its jobs go back uncharged", child.name)
            child.kill()

    async def _say_goodbye(self) -> None:
        """Reports on ended children arrive first."""
        stream = self._stream
        if stream is None:
            return
        if self._farewells and stream.was_open:
            await asyncio.wait(self._farewells, timeout=_FAREWELL_SECONDS)
        await stream.close()


def named(begun: Sequence[Begun]) -> str:
    """Jobs in words."""
    shown = [f"job {each.held[0]} of {each.task}" for each in begun[:_NAMED_MAX]]
    if len(begun) > _NAMED_MAX:
        shown.append(f"{len(begun) - _NAMED_MAX} more")
    return ", ".join(shown) or "no job"


def run(options: SupervisorOptions) -> int:
    """Runs a supervisor; the exit code."""
    terminal.share(options.log_format)
    write_records(options.log_format, options.log_level)
    folder = Path(tempfile.mkdtemp(prefix="manyhands-worker-"))

    async def supervise() -> int:
        return await Supervisor(options, folder).run()

    try:
        return asyncio.run(supervise())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Runs as the environment says."""
    sys.exit(run(msgspec.json.decode(os.environ.pop(VARIABLE), type=SupervisorOptions)))


if __name__ == "__main__":
    main()
