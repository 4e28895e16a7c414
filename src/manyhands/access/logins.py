"""Logins: peers are identified here, and failures are counted, logged and recorded."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from manyhands.access.audit import AuditLog
from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials
from manyhands.access.gate import NOBODY
from manyhands.loggers import get_logger
from manyhands.model.roles import Caller
from manyhands.observe.repeats import Repeats

_log = get_logger("manyhands.access")

# How long the answer to a failed login is held back.
DELAY_SECONDS: Final = 1.0


class Logins:
    """Identifies peers by what they show."""

    def __init__(self, callers: Callers, audit: AuditLog) -> None:
        self.callers = callers
        self._audit = audit
        self._failed: dict[str, int] = {}
        self._repeats = Repeats(_log)

    def identify(self, shown: Credentials, protocol: str) -> Caller | None:
        """The caller, or None; a wrong secret counts as a failed login."""
        caller = self.callers.identify(shown)
        if caller is None and _kind(shown) is not None:
            self.failed(shown, protocol)
        return caller

    def failed(self, shown: Credentials, protocol: str) -> None:
        """Counts, logs and records a failed login, without what was shown."""
        self._failed[protocol] = self._failed.get(protocol, 0) + 1
        address = shown.address or ""
        kind = _kind(shown) or "nothing"
        self._repeats.warn("a login failed", address, protocol=protocol, shown=kind)
        self._audit.refused(NOBODY, address, protocol, f"log in with a {kind}", "")

    def metrics(self) -> Iterator[Metric]:
        """Failed logins by protocol."""
        failed = CounterMetricFamily(
            "manyhands_failed_logins",
            "Peers that showed wrong, expired or unknown credentials.",
            labels=["protocol"],
        )
        for protocol, count in self._failed.items():
            failed.add_metric([protocol], count)
        yield failed


def _kind(shown: Credentials) -> str | None:
    if shown.token is not None:
        return "token"
    if shown.user is not None or shown.password is not None:
        return "password"
    if shown.curve is not None:
        return "CURVE key"
    return "certificate" if shown.certificate is not None else None
