"""What signals do to a running server. Only those that are meant to stop it do."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable

from manyhands.dispatch.condition import Condition
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.loggers import get_logger
from manyhands.observe.logs import LogFile
from manyhands.observe.traffic import Traffic
from manyhands.operate.watched_files import WatchedFiles

_log = get_logger("manyhands.server")


def wait_until_running() -> None:
    """Blocks these signals while the store is being opened: their handlers are not ready yet."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def listen_to_signals(
    condition: Condition,
    loop: asyncio.AbstractEventLoop,
    *,
    remove_files: Callable[[], None],
    log_file: LogFile | None,
    log_state: Callable[[], None],
    watched: WatchedFiles,
) -> None:
    """Installs the handlers. ``remove_files`` is called before an immediate exit."""
    on_terminal = _is_on_terminal()

    def hung_up() -> None:
        if on_terminal and not _is_on_terminal():
            # Its window was closed: nobody sees it any more, and nobody could end it with Ctrl-C.
            _stop(condition, remove_files)
        else:
            _read_again(log_file, watched)

    actions: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: _stop(condition, remove_files),
        signal.SIGINT: lambda: _stop(condition, remove_files),
        signal.SIGUSR1: condition.stopping.set,
        signal.SIGHUP: hung_up,
        signal.SIGUSR2: log_state,
    }
    for number, action in actions.items():
        loop.add_signal_handler(number, action)


def _is_on_terminal() -> bool:
    """Whether one of the standard streams is a terminal that is still there."""
    return any(map(os.isatty, range(3)))


def _stop(condition: Condition, remove_files: Callable[[], None]) -> None:
    if condition.hurried.is_set():
        # The second request exits at once: what is committed stays, the rest was never
        # acknowledged.
        remove_files()
        os._exit(1)
    condition.hurried.set()
    condition.stopping.set()


def _read_again(log_file: LogFile | None, watched: WatchedFiles) -> None:
    if log_file is not None:
        _reopen(log_file)
    elif not watched:
        _log.info("SIGHUP is ignored: there is no log file to reopen, and no file to read again")
    watched.reload()


def _reopen(log_file: LogFile) -> None:
    try:
        log_file.reopen()
    except OSError as error:
        _log.error(
            "the log file cannot be reopened; logging continues in the old one", reason=str(error)
        )
    else:
        _log.info("the log file was reopened")


def log_state(condition: Condition, dispatcher: Dispatcher, traffic: Traffic) -> None:
    """Logs the state of the server, for operators who cannot reach the pages."""
    live = dispatcher.store.live
    jobs: Counter[str] = Counter()
    for queue in live.queues.values():
        jobs.update({state.value: count for state, count in queue.counts.items() if count})
    _log.info(
        "state",
        stopping=condition.stopping.is_set(),
        jobs=dict(jobs),
        queues=len(live.queues),
        workers=live.workers_count(),
        sleepers=dispatcher.sleepers.count,
        connections={row["protocol"]: row["connections"] for row in traffic.rows()},
        commands=dispatcher.counts.commands,
        commits=dispatcher.counts.batches,
        answers=dispatcher.counts.answers,
    )
