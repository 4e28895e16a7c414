"""A worker in one process: takes jobs from its stream, runs them, reports on them."""

import asyncio
import contextlib
import contextvars
import fnmatch
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, Final

from manyhands.client import notes, traces
from manyhands.client.address import Place
from manyhands.client.app import App
from manyhands.client.errors import Refused
from manyhands.client.worker.bulletin import Bulletin
from manyhands.client.worker.dependencies import Dependencies
from manyhands.client.worker.execution import Execution, Outcome, interrupted, timed_out
from manyhands.client.worker.hands import Hands
from manyhands.client.worker.memory import resident_bytes
from manyhands.client.worker.options import AHEAD_MAX, CrewOptions
from manyhands.client.worker.page import Page
from manyhands.client.worker.reports import Reports
from manyhands.client.worker.run import SHUTDOWN, TIMEOUT, Catalogue, Run
from manyhands.client.worker.tallies import (
    COMPLETED,
    FAILED,
    GIVEN_BACK,
    LOST,
    Pace,
    Tallies,
)
from manyhands.client.worker_stream import WorkerStream

_log: Final = logging.getLogger("manyhands.worker")
_BUFFERED_SECONDS_MAX: Final = 1.0  # P45
_LONELY_SECONDS_MAX: Final = 3.0  # P49: meanwhile no other job is started
_TICK_SECONDS: Final = 0.25
_SHOWN_CHARS_MAX: Final = 200  # of a failure, in the log
_QUEUES_MAX: Final = 1_000  # the server's bound
# P61: the server cuts an attempt off at its timeout and this grace, counted from the claim.
_BEFORE_NET: Final = 0.8
_NUDGE_SECONDS: Final = 0.005
_FAREWELL_SECONDS: Final = 10.0  # for the last reports, if the server is away
UNKNOWN_TASK: Final = "unknown_task"


class Crew:
    """The worker's side of a stream, in the running loop. ``want_replacement`` is called when this
    process should make room for a fresh one, ``is_stalled`` again and again while a job that has to
    run alone waits for others that take long. If nobody replaces this one, it runs beside them.
    """

    def __init__(
        self,
        app: App[Any],
        places: Sequence[Place],
        token: str | None,
        options: CrewOptions,
        page: Page | None = None,
        want_replacement: Callable[[str], None] = lambda _: None,
        is_stalled: Callable[[], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.tallies = Tallies()
        self.catalogue = Catalogue(app)
        self.queues = chosen(self.catalogue.queues, options.queues)
        self.is_draining = False
        self._loop = loop
        self._app = app
        self._page = page
        self._want_replacement = want_replacement
        self._is_stalled = is_stalled
        self.stream = WorkerStream(places, self, name=options.name, token=token)
        self._slots: deque[int] = deque(reversed(range(options.concurrency)))
        self._written_off = 0
        self._runs: dict[str, Run] = {}  # what is held and has no outcome yet, by id
        self._hands = Hands(self._slots, self._work)
        self._coroutines: deque[Run] = deque()
        self._lonely: deque[Run] = deque()
        self._bulletin = Bulletin(loop, self.stream)
        self._dependencies = Dependencies(self.stream, self._admit_late, self._end)
        self._execution = Execution(loop, app.arounds)
        self._reports = Reports(loop, self.stream, self._settle, self._top_up, self._was_refused)
        self._pace = Pace(
            options.concurrency, AHEAD_MAX if options.ahead is None else options.ahead
        )
        self._credit = [0, 0]  # slots and ahead that were given and not used
        self._tasks: set[asyncio.Task[None]] = set()
        self._lifespan = contextlib.AsyncExitStack()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._shortest_term_ms = 0
        self._ticks = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._was_connected = False
        self._is_proceeding = False
        self._is_closing = False
        self._problems: set[str] = set()  # those that were logged since there was a connection
        self._is_nudge_due = False
        self._context = contextvars.copy_context()  # not that of a job

    @staticmethod
    def check(app: App[Any], options: CrewOptions) -> None:
        """Raises ValueError for an app that cannot be worked for."""
        queues = chosen(Catalogue(app).queues, options.queues)
        if not queues:
            raise ValueError("this app has no task that can be worked here")
        if len(queues) > _QUEUES_MAX:
            raise ValueError(
                f"a worker takes from at most {_QUEUES_MAX} queues; choose with --queues"
            )

    # The life of a crew.

    async def start(self) -> None:
        """Enters the app's lifespan, then asks for work."""
        if self._app.lifespan is not None:
            self._app.set_state(await self._lifespan.enter_async_context(self._app.lifespan()))
        self.stream.want(self.queues, self.options.order)
        self._tick()

    async def drain(self, grace: float) -> None:
        """P51: takes no more work, gives back what waits, lets the rest finish for a while; then
        interrupts it and gives it back.
        """
        self._stop_taking()
        if not await self._is_idle_in(grace):
            for run in tuple(self._runs.values()):
                self._interrupt(run, SHUTDOWN)
            await self._is_idle_in(self.options.cancel_grace)

    async def close(self) -> None:
        """Gives back everything, at once, and ends the connection."""
        self._stop_taking()
        for run in tuple(self._runs.values()):
            run.interrupt(SHUTDOWN)
            if run.is_running:
                run.took = perf_counter() - run.began
            self._end(run, interrupted(run))
        if self.stream.was_open:  # else it holds nothing
            await self._say_goodbye()
        self._is_closing = True
        await self.stream.close()
        self._hands.close()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await self._lifespan.aclose()
        self._app.set_state(None)

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._reports.wait()
                await self.stream.depart(self.options.name, "the worker stopped")
        except TimeoutError:
            _log.warning(
                "the server could not be notified that this worker stops: %s", self.stream.problem
            )
        except Refused as error:
            _log.warning("the server refuses to hear that this worker stops: %s", error)

    def _stop_taking(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self.stream.want(self.queues, self.options.order)  # without credit
        for waiting in (self._hands.buffer, self._coroutines, self._lonely):
            while waiting:
                with contextlib.suppress(IndexError):  # a thread was faster
                    self._give_back(waiting.popleft())

    async def _is_idle_in(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
                return True
        return False

    # The stream's calls.

    def take(self, jobs: list[notes.Job]) -> None:
        """Work."""
        used = min(len(jobs), self._credit[0])
        self._credit[0] -= used
        self._credit[1] = max(0, self._credit[1] - (len(jobs) - used))
        self._execution.is_traced = traces.has_provider()
        find, bulletin, now = self.catalogue.find, self._bulletin, perf_counter()
        for given in jobs:
            task = find(given)
            if task is None:
                self._fail_unknown(given)
                continue
            run = self._runs[given.id] = Run(given, task, bulletin, now)
            if given.term_ms and not 0 < self._shortest_term_ms <= given.term_ms:
                self._note_term(given.term_ms)
            if given.headers is not None and not self.is_draining:
                if not self._dependencies.await_outputs(run):
                    self._admit(run)
            else:
                self._admit(run)
        if self._runs:
            self._idle.clear()
        self._proceed()

    def _admit(self, run: Run) -> None:
        """A job that can be run."""
        if run.is_gone or self.is_draining:
            if not run.is_gone:
                self._give_back(run)
        elif run.is_lonely and self.options.concurrency > 1:
            self._lonely.append(run)
        elif run.task.is_async:
            self._coroutines.append(run)
        else:
            self._hands.put(run)

    def _admit_late(self, run: Run) -> None:
        self._admit(run)
        self._proceed()

    def notified(self, job_id: str, lease_number: int, why: str) -> None:
        """A lease is gone."""
        run = self._runs.get(job_id)
        if run is not None and run.given.lease_number == lease_number and not run.is_gone:
            run.is_gone = True
            if run.is_running or run.slot >= 0:
                self._interrupt(run, why)
            else:
                run.interrupt(why)
                self._forget_waiting(run)

    def _forget_waiting(self, run: Run) -> None:
        for waiting in (self._hands.buffer, self._coroutines, self._lonely):
            with contextlib.suppress(ValueError, IndexError):
                waiting.remove(run)
                self._end(run, interrupted(run))
                break
        if self._hands.is_held and not self._lonely and not self._is_one_alone():
            self._hands.is_held = False
            self._proceed()

    def _is_one_alone(self) -> bool:
        return any(
            run.is_lonely and run.slot >= 0 and not run.is_over for run in self._runs.values()
        )

    def resumed(self) -> None:
        """A connection: credit starts anew."""
        if self._was_connected:
            self.tallies.reconnects += 1
        self._was_connected = True
        self._problems.clear()
        _log.info("connected to the server")
        self._credit = [0, 0]
        self._top_up()
        self._show()

    def lost(self, why: str) -> None:
        """There is no connection."""
        self._credit = [0, 0]
        if self._is_closing:
            return
        self._tell_once(logging.WARNING, "no connection to the server, another is tried: %s", why)
        self._show()

    def _tell_once(self, level: int, text: str, why: str) -> None:
        """Until there is a connection, each problem is logged once."""
        if why not in self._problems:
            self._problems.add(why)
            _log.log(level, text, why)

    def closing(self, seconds: float) -> None:
        """The server stops."""
        _log.info("the server stops within %g s", seconds)

    def refused(self, error: Refused) -> None:
        """The server does not want this worker."""
        if not self._is_closing:
            self._tell_once(logging.ERROR, "the server refuses this worker: %s", str(error))

    # Running.

    def _proceed(self) -> None:
        """Starts what can be started. In the loop."""
        self._is_proceeding = False
        if self._lonely:
            self._hands.is_held = True
            if self._is_every_slot_free():
                run = self._lonely.popleft()
                run.slot = self._slots.pop()
                self._start_lonely(run)
            return
        while self._coroutines and not self._hands.is_held:
            try:
                slot = self._slots.pop()
            except IndexError:
                return
            run = self._coroutines.popleft()
            run.slot = slot
            self._start_coroutine(run)
        if self._hands.is_eager or not self._hands.is_busy:
            self._hands.wake()
        elif self._hands.buffer and not self._is_nudge_due:
            self._is_nudge_due = True
            self._loop.call_later(_NUDGE_SECONDS, self._nudge)

    def _nudge(self) -> None:
        """Jobs still wait: the one before them is not as short as the others were."""
        self._is_nudge_due = False
        if self._hands.buffer:
            self._hands.wake()
            self._proceed()

    def _is_every_slot_free(self) -> bool:
        return len(self._slots) == self.options.concurrency - self._written_off

    def _start_lonely(self, run: Run) -> None:
        """P49: it may take the process with it, so that nothing else runs here."""
        if run.task.is_async:
            self._start_coroutine(run)
        else:
            self._hands.run_alone(run)

    def _join_others(self) -> None:
        """The jobs that were to run alone are as all others."""
        while self._lonely:
            run = self._lonely.popleft()
            if run.task.is_async:
                self._coroutines.append(run)
            else:
                self._hands.put(run)
        self._hands.is_held = False
        self._proceed()

    def _start_coroutine(self, run: Run) -> None:
        self._begin(run)
        task = start_task(self._loop, self._run_coroutine(run), self._execution.context())
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_coroutine(self, run: Run) -> None:
        run.aio = asyncio.current_task()
        outcome = await self._execution.in_loop(run)
        run.aio = None
        self._end_running(run, outcome, is_last=not self._coroutines)
        if self._coroutines and not self._is_proceeding:
            self._is_proceeding = True
            self._loop.call_soon(self._proceed, context=self._context)

    def _work(self, run: Run) -> None:
        """Runs a job in a thread."""
        self._begin(run)
        outcome = self._execution.in_thread(run)
        run.thread = None
        hands = self._hands
        is_last = not hands.buffer or bool(self._coroutines) or hands.is_held
        self._end_running(run, outcome, is_last=is_last)

    def _begin(self, run: Run) -> None:
        if self._page is not None:
            self._page.put(run.slot, run.given.held, run.task.name)
        run.began = perf_counter()
        timeout = run.timeout
        if timeout is not None:
            self._loop.call_soon_threadsafe(self._arm, run, timeout)

    def _arm(self, run: Run, timeout: float) -> None:
        if not run.is_over:
            wait = run.began + timeout - perf_counter()
            run.timer = self._loop.call_later(wait, self._interrupt, run, TIMEOUT)

    def _end_running(self, run: Run, outcome: Outcome, *, is_last: bool) -> None:
        """From the thread of the job."""
        if run.was_given_up:
            return  # its outcome was reported, and its slot is gone
        run.took = perf_counter() - run.began
        if self._page is not None:
            self._page.clear(run.slot)
        self._slots.append(run.slot)
        self._end(run, outcome, is_last=is_last)

    def _end(self, run: Run, outcome: Outcome, *, is_last: bool = True) -> None:
        if not run.is_over:
            run.is_over = True
            self._reports.add(run, outcome, is_last=is_last)

    def _give_back(self, run: Run) -> None:
        """P45, P51: uncharged."""
        run.interrupt(SHUTDOWN)
        self._end(run, Outcome(GIVEN_BACK, run.given.held))

    def _fail_unknown(self, given: notes.Job) -> None:
        name = (given.headers or {}).get("task")
        sentence = (
            f"this app has no task {name!r} in queue {given.queue!r}"
            if name
            else f"several tasks share queue {given.queue!r}, none is the default, and the job "
            "names none"
        )
        self.tallies.note(name or given.queue, FAILED, 0.0)
        answer = self.stream.report(failed=[(*given.held, UNKNOWN_TASK, sentence, b"", True, None)])
        answer.add_done_callback(self._was_unknown)

    def _was_unknown(self, answer: "asyncio.Future[list[notes.Refused]]") -> None:
        """It took credit, which is given again: other jobs wait behind it."""
        if not answer.cancelled() and answer.exception() is None:
            self._top_up()

    # Interruption.

    def _interrupt(self, run: Run, why: str) -> None:
        if run.is_over or run.why is not None:
            return
        run.interrupt(why)
        patience = self.options.cancel_grace
        if why == TIMEOUT:
            patience *= _BEFORE_NET  # so that we are the ones to report it
        self._loop.call_later(patience, self._give_up, run)

    def _give_up(self, run: Run) -> None:
        """P60: the function did not end when it was interrupted."""
        if run.is_over or not run.is_running:
            return
        run.was_given_up = True
        run.took = perf_counter() - run.began
        outcome = timed_out(run, b"") if run.why == TIMEOUT else interrupted(run)
        self._end(run, outcome)
        self._written_off += 1
        _log.error(
            "job %s of task %s did not end %g s after it was interrupted (%s): its slot is lost, "
            "and this process is replaced when its other jobs are done",
            run.given.id,
            run.task.name,
            self.options.cancel_grace,
            run.why,
        )
        if run.thread is not None:
            self._hands.write_off()
        self._want_replacement("a job did not end")

    # After a job.

    def _settle(self, ended: Sequence[tuple[Run, Outcome]]) -> None:
        """Outcomes leave. In the loop."""
        runs = self._runs
        sums: dict[tuple[str, str, str], list[float]] = {}  # how many, and their run time
        for run, (kind, _) in ended:
            given = run.given
            if run.timer is not None:
                run.timer.cancel()
            if run.words is not None:
                self._bulletin.send(run)
            if runs.get(given.id) is run:
                del runs[given.id]
            key = (run.task.name, given.queue, kind)
            found = sums.get(key)
            if found is None:
                sums[key] = [1, run.took]
            else:
                found[0] += 1
                found[1] += run.took
        for (task, queue, kind), (count, seconds) in sums.items():
            self.tallies.note(task, kind, seconds, int(count))
            if kind in (COMPLETED, FAILED):
                self._pace.note(queue, seconds, int(count))
        if _log.isEnabledFor(logging.INFO):
            for run, outcome in ended:
                self._log_end(run, outcome)

    def _log_end(self, run: Run, outcome: Outcome) -> None:
        """P65: one line for each job."""
        kind = outcome.kind
        how, why = kind.replace("_", " "), ""
        if kind == FAILED:
            code, message = outcome.report[2:4]
            why = f": {code}: {message.partition(chr(10))[0][:_SHOWN_CHARS_MAX]}"
        given, task = run.given, run.task.name
        fields = {
            "job_id": given.id,
            "task": task,
            "queue": given.queue,
            "attempt": given.attempts_used + 1,
            "outcome": kind,
            "seconds": round(run.took, 6),
        }
        _log.info("job %s of %s %s in %.3f s%s", given.id, task, how, run.took, why, extra=fields)

    def _was_refused(self, run: Run) -> None:
        self.tallies.note(run.task.name, LOST, 0.0)

    def _top_up(self) -> None:
        """Gives the credit that idle slots and the pace allow, and starts what waits."""
        self._proceed()
        if not self._runs and not self._lonely:
            self._idle.set()
        if self._hands.is_held and not self._lonely and self._is_every_slot_free():
            self._hands.is_held = False
            self._proceed()
        self._check_age()
        if self.is_draining or not self.stream.is_open or self._lonely or self._hands.is_held:
            return
        held = len(self._runs)
        hands = self.options.concurrency - self._written_off
        slots = max(0, hands - held - self._credit[0])
        self._hands.is_eager = not self._pace.is_fast
        ahead_target = self._pace.ahead()
        ahead = max(0, ahead_target - max(0, held - hands) - self._credit[1])
        if slots or ahead > ahead_target // 4:
            self._credit[0] += slots
            self._credit[1] += ahead
            self.stream.give(slots, ahead)

    def _check_age(self) -> None:
        """P52: a limit of this process is reached."""
        limit = self.options.max_jobs
        if limit is not None and self.tallies.ended >= limit and not self.is_draining:
            self._want_replacement(f"it has run {self.tallies.ended} jobs")

    # Every now and then.

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._ticks += 1
        since = perf_counter() - _BUFFERED_SECONDS_MAX
        for waiting in (self._hands.buffer, self._coroutines):
            with contextlib.suppress(IndexError):  # a thread was faster
                while waiting[0].arrived < since:
                    self._give_back(waiting.popleft())
        if self._lonely and self._lonely[0].arrived < perf_counter() - _LONELY_SECONDS_MAX:
            (self._is_stalled or self._join_others)()
        if self.options.max_memory is not None and not self.is_draining:
            used = resident_bytes()
            if used > self.options.max_memory and self.tallies.ended:
                self._want_replacement(f"it uses {used // 1024**2} MiB")
        self._show()

    def _note_term(self, term_ms: int) -> None:
        self._shortest_term_ms = term_ms
        self._show()

    @property
    def shortest_term_ms(self) -> int:
        """The shortest term of a lease so far; 0 if there was none."""
        return self._shortest_term_ms

    @property
    def ahead_count(self) -> int:
        """Jobs that wait for a slot."""
        return len(self._hands.buffer) + len(self._coroutines) + len(self._lonely)

    @property
    def running(self) -> list[Run]:
        """What runs now."""
        return [run for run in tuple(self._runs.values()) if run.is_running and not run.is_over]

    def _show(self) -> None:
        if self._page is not None:
            total = self.tallies.total
            self._page.write(
                is_connected=int(self.stream.is_open),
                shortest_term_ms=self._shortest_term_ms,
                completed=total.completed,
                failed=total.failed,
                given_back=total.given_back,
                lost=total.lost,
                ahead=self.ahead_count,
                ticks=self._ticks,
            )


def start_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, None],
    context: contextvars.Context,
) -> "asyncio.Task[None]":
    """P43: from Python 3.12 on it starts at once, so that one that never waits costs little."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)
    return loop.create_task(coroutine, context=context)


def chosen(queues: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """P42: the app's queues that match one of the patterns. Raises ValueError for one that matches
    none.
    """
    if not patterns:
        return list(queues)
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(queues, pattern)
        if not matching:
            raise ValueError(
                f"no queue of this app matches {pattern!r}; it has {', '.join(queues) or 'none'}"
            )
        found.update(dict.fromkeys(matching))
    return list(found)
