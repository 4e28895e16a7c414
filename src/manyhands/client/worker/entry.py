"""A child of ``manyhands worker``: a fresh interpreter that runs the tasks of an app."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import sysconfig
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from manyhands.client import pickled
from manyhands.client.address import Url, places
from manyhands.client.app import App
from manyhands.client.errors import Refused, Unavailable
from manyhands.client.loops import new_loop
from manyhands.client.worker import listing, messages, targets, terminal
from manyhands.client.worker.blockage import BlockageWatch
from manyhands.client.worker.crew import Crew
from manyhands.client.worker.declared import Difference, Registry
from manyhands.client.worker.failures import details_of
from manyhands.client.worker.options import ChildOptions
from manyhands.client.worker.page import Page
from manyhands.client.worker.records import write_records

VARIABLE: Final = "MANYHANDS_WORKER_CHILD"
_FIGURES_SECONDS: Final = 1.0
_DECLARE_SECONDS: Final = 0.1
_DECLARE_SECONDS_MAX: Final = 5.0
# P44: a thread that runs short jobs lets the loop report and fetch meanwhile. With Python's own
# 5 ms it would run all that was fetched ahead first, and then wait for more. Threads that compute
# side by side pay one or two percent for it.
_SWITCH_SECONDS: Final = 0.0005
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))
_SITES: Final = frozenset({"site-packages", "dist-packages"})
_log: Final = logging.getLogger("manyhands.worker")


class Child:
    """One process of a worker."""

    def __init__(self, options: ChildOptions, app: App[Any]) -> None:
        self._options = options
        self._app = app
        self._pipe = os.fdopen(options.pipe, "wb", buffering=0)
        self._grace: float | None = None  # how long running jobs may take, once it is to stop
        self._has_grace = asyncio.Event()  # a new one
        self._hurry = asyncio.Event()
        self._is_orphan = False

    def tell(self, message: messages.Message) -> None:
        """Reports to the supervisor; it may be dead."""
        with contextlib.suppress(OSError):
            self._pipe.write(messages.encode(message) + b"\n")

    async def run(self, orders: int) -> int:
        """Works until the supervisor stops it or dies; returns the exit code."""
        try:
            await self._work(orders)
        except Exception as error:  # noqa: BLE001 - of the app's lifespan
            sys.stderr.write(f"{details_of(error).decode()}manyhands: the app's lifespan failed\n")
            return 1
        return 0

    async def _work(self, orders: int) -> None:
        loop = asyncio.get_running_loop()
        await self._listen(orders)
        loop.add_signal_handler(signal.SIGTERM, self._stop, self._options.grace)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor's affair
        options = self._options.crew
        page = Page(Path(self._options.page), options.concurrency)
        crew = Crew(
            self._app,
            self._app.places,
            self._app.token,
            options,
            page,
            self._make_room,
            lambda: self.tell(messages.Stalled()),
        )
        background = [loop.create_task(self._report(crew))]
        if self._options.is_lead:
            listing.show(self._app, crew.queues)
            background.append(loop.create_task(self._declare()))
        await crew.start()
        watch = BlockageWatch(loop, lambda: crew.running)
        page.write(is_ready=1)
        self.tell(messages.Ready())
        _log.info("ready: %s", options.name)
        await self._has_grace.wait()
        page.write(is_ready=0)
        await self._drain(crew)
        watch.close()
        for task in background:
            task.cancel()
        await crew.close()
        if self._is_orphan:
            self._tidy_up()

    def _tidy_up(self) -> None:
        """P50: nobody else removes what the supervisor left, once the last child is gone."""
        page = Path(self._options.page)
        page.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another child still has its page there
            page.parent.rmdir()

    async def _drain(self, crew: Crew) -> None:
        """Anew with each grace: the next one is shorter."""
        while self._has_grace.is_set() and not self._hurry.is_set():
            self._has_grace.clear()
            assert self._grace is not None
            waits = [
                asyncio.ensure_future(each)
                for each in (crew.drain(self._grace), self._has_grace.wait(), self._hurry.wait())
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # Orders.

    async def _listen(self, orders: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        file = os.fdopen(orders, "rb", buffering=0)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        self._listening = loop.create_task(self._follow(reader))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            order, *values = line.decode().split()
            if order == "drain":
                self._stop(float(values[0]))
            else:
                self._stop(0.0)
                self._hurry.set()
        # P50: the supervisor is dead.
        self._is_orphan = True
        _log.warning("the supervisor is gone: running jobs are finished, no more are taken")
        self._stop(self._options.grace)

    def _stop(self, grace: float) -> None:
        if self._grace is None or grace < self._grace:
            self._grace = grace
            self._has_grace.set()

    def _make_room(self, why: str) -> None:
        """P52, P60: drains, to be replaced."""
        if self._grace is None:
            _log.info("this process is replaced: %s", why)
            self.tell(messages.Leaving(why))
            self._stop(float("inf"))

    # In the background.

    async def _report(self, crew: Crew) -> None:
        while True:
            self.tell(
                messages.Figures(
                    crew.tallies.by_task,
                    len(crew.running),
                    crew.ahead_count,
                    crew.tallies.reconnects,
                    crew.stream.is_open,
                    crew.stream.silence,
                )
            )
            await asyncio.sleep(_FIGURES_SECONDS)

    async def _declare(self) -> None:
        """P55: puts what the server does not have."""
        pause = _DECLARE_SECONDS
        while (different := await asyncio.to_thread(self._put_missing)) is None:
            await asyncio.sleep(pause)
            pause = min(_DECLARE_SECONDS_MAX, pause * 2)
        for difference in different:
            _log.warning(
                "%s (left as it is; see `manyhands apply %s`)", difference, self._options.target
            )

    def _put_missing(self) -> list[Difference] | None:
        """None: the server is away."""
        try:
            origin = targets.full_name(self._app, self._options.target)
            return Registry(self._app, origin).put_missing()
        except Unavailable:
            return None
        except Refused as error:
            _log.warning("settings of the code were not put: %s", error)
            return []


def modules_of_user(target: str) -> list[str]:
    """Files whose change calls for new processes, that of the app first, imported or not."""
    found = set()
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(target.partition(":")[0])
        if spec is not None and spec.origin is not None:
            found.add(spec.origin)
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not _is_installed(Path(file)):
            found.add(str(Path(file).absolute()))
    return sorted(found)


def _is_installed(file: Path) -> bool:
    """Whether a module came with Python or a package. Projects may lie below Python's prefix."""
    return file.is_relative_to(_STANDARD) or not _SITES.isdisjoint(file.parts)


def main() -> None:
    """Runs as the supervisor says in the environment; orders come over standard input."""
    options = msgspec.json.decode(os.environ.pop(VARIABLE), type=ChildOptions)
    # What the tasks read from standard input is nothing, not our orders.
    orders = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.set_inheritable(options.pipe, False)  # noqa: FBT003 - its own signature
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_SECONDS)
    terminal.share(options.log_format)
    write_records(options.log_format, options.log_level)
    code = _start(options, orders)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that do not end their jobs hold up nothing.
    os._exit(code)


def _start(options: ChildOptions, orders: int) -> int:
    try:
        app = targets.load(options.target, options.framework)
        pickled.allow(app)
        if options.server is not None:
            app.bind(places(options.server), app.token, app.timeout)
        child = Child(options, app)
        _introduce(child, app, options.target)
        Crew.check(app, options.crew)
    except (targets.TargetError, ValueError) as error:
        trace = getattr(error, "trace", "")
        text = messages.Unloadable(f"{trace}manyhands: {error}\n")
        files = messages.Modules(modules_of_user(options.target))
        with contextlib.suppress(OSError):
            os.write(options.pipe, b"%b\n%b\n" % (messages.encode(files), messages.encode(text)))
        return messages.UNLOADABLE
    return _run(child.run(orders))


def _introduce(child: Child, app: App[Any], target: str) -> None:
    addresses = [place for place in app.places if isinstance(place, Url)]
    if len(addresses) != len(app.places):
        raise ValueError(
            "an app with an embedded server works in its own process: use app.worker() there, or "
            "run `manyhands serve` and give its address"
        )
    names = ",".join(place.name for place in addresses)
    child.tell(messages.Connection(names, app.token, addresses[0].trust))
    child.tell(messages.Modules(modules_of_user(target)))


def _run(work: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


if __name__ == "__main__":
    main()
