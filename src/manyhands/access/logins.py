"""Logins: peers are identified here, and failures are counted, logged, recorded and delayed."""

import asyncio
import enum
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.access.audit import AuditLog
from manyhands.access.callers import Callers, Entry, PasswordCheck
from manyhands.access.credentials import Credentials
from manyhands.access.gate import NOBODY
from manyhands.access.password_line import PasswordLine
from manyhands.loggers import get_logger
from manyhands.model.roles import Caller
from manyhands.observe.repeats import Repeats

_log = get_logger("manyhands.access")

# How long after its login a peer learns that it failed, however long the check took.
DELAY_SECONDS: Final = 1.0


class Failure(enum.Enum):
    """Why a login has no caller."""

    WRONG = "wrong"  # or expired, or unknown
    BUSY = "busy"  # too many passwords wait to be checked


Then = Callable[[Caller | Failure], None]


class Logins:
    """Identifies peers by what they show."""

    def __init__(self, callers: Callers, audit: AuditLog, loop: asyncio.AbstractEventLoop) -> None:
        self.callers = callers
        self._audit = audit
        self._loop = loop
        self._line = PasswordLine(loop)
        self._failed: dict[str, int] = {}
        self._postponed: dict[str, int] = {}
        self._repeats = Repeats(_log)

    def identify(self, shown: Credentials, protocol: str, then: Then) -> None:
        """Calls back with the caller: at once, unless it is a password that was not verified
        before. A failure is reported after a while.
        """
        found = self.callers.recognise(shown)
        if isinstance(found, PasswordCheck):
            checked = partial(self._checked, shown, protocol, then, self._loop.time(), found)
            if not self._line.put(shown.address or "", found, checked):
                self._postponed[protocol] = self._postponed.get(protocol, 0) + 1
                self._repeats.warn(
                    "too many passwords wait to be checked", shown.address or "", protocol=protocol
                )
                self._loop.call_later(DELAY_SECONDS, then, Failure.BUSY)
        elif found is not None:
            then(found)
        else:
            self.fail(shown, protocol, then)

    async def identified(self, shown: Credentials, protocol: str) -> Caller | Failure:
        """The same for a coroutine."""
        future: asyncio.Future[Caller | Failure] = self._loop.create_future()

        def settle(found: Caller | Failure) -> None:
            if not future.done():
                future.set_result(found)

        self.identify(shown, protocol, settle)
        return await future

    def fail(self, shown: Credentials, protocol: str, then: Then) -> None:
        """The login of a peer has failed: it learns so after a while."""
        self._failed_since(shown, protocol, then, self._loop.time())

    def _checked(
        self,
        shown: Credentials,
        protocol: str,
        then: Then,
        since: float,
        check: PasswordCheck,
        entry: Entry | None,
    ) -> None:
        found = self.callers.conclude(check, entry)
        if found is None:
            self._failed_since(shown, protocol, then, since)
        else:
            then(found)

    def _failed_since(self, shown: Credentials, protocol: str, then: Then, since: float) -> None:
        self.failed(shown, protocol)
        self._loop.call_at(since + DELAY_SECONDS, then, Failure.WRONG)

    def failed(self, shown: Credentials, protocol: str) -> None:
        """Counts, logs and records a failed login, without what was shown."""
        self._failed[protocol] = self._failed.get(protocol, 0) + 1
        address = shown.address or ""
        kind = _kind(shown)
        self._repeats.warn("a login failed", address, protocol=protocol, shown=kind)
        self._audit.refused(NOBODY, address, protocol, f"log in with a {kind}", "")

    def metrics(self) -> Iterator[Metric]:
        """Failed logins by protocol, and those that were not looked at."""
        failed = CounterMetricFamily(
            "manyhands_failed_logins",
            "Peers that showed wrong, expired or unknown credentials.",
            labels=["protocol"],
        )
        for protocol, count in self._failed.items():
            failed.add_metric([protocol], count)
        yield failed
        postponed = CounterMetricFamily(
            "manyhands_postponed_logins",
            "Peers that were sent away because too many passwords waited to be checked.",
            labels=["protocol"],
        )
        for protocol, count in self._postponed.items():
            postponed.add_metric([protocol], count)
        yield postponed
        yield GaugeMetricFamily(
            "manyhands_waiting_logins",
            "Passwords that wait to be checked.",
            self._line.waiting_count,
        )


def _kind(shown: Credentials) -> str:
    if shown.token is not None:
        return "token"
    if shown.user is not None or shown.password is not None:
        return "password"
    if shown.curve is not None:
        return "CURVE key"
    return "certificate" if shown.certificate is not None else "nothing"
