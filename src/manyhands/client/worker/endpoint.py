"""Metrics of a worker, and whether it is well, over HTTP (P57)."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from manyhands.client.worker.tallies import OUTCOMES

if TYPE_CHECKING:
    from manyhands.client.worker.supervisor import Supervisor

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS_MAX: Final = 10.0
_REQUEST_LINES_MAX: Final = 100


class Endpoint:
    """A tiny server: ``/metrics`` and ``/healthz``."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self._supervisor = supervisor
        self._server: asyncio.Server | None = None

    async def open(self, address: str) -> None:
        """Listens. Raises ValueError if it cannot."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            raise ValueError(f"metrics cannot be served at {address!r}: {error}") from None

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_SECONDS_MAX):
                words = (await reader.readline()).split()
                for _ in range(_REQUEST_LINES_MAX):
                    if (await reader.readline()).strip() == b"":
                        break
                status, body = self._answer(words[1].partition(b"?")[0] if len(words) > 1 else b"")
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    def _answer(self, path: bytes) -> tuple[str, bytes]:
        if path == b"/metrics":
            return "200 OK", metrics(self._supervisor).encode()
        if path == b"/healthz":
            children = self._supervisor.children
            ready = sum(child.is_ready and _is_connected(child.page.read()) for child in children)
            status = "200 OK" if ready else "503 Service Unavailable"
            return status, f"{ready} of {len(children)} processes take work\n".encode()
        return "404 Not Found", b"there are /metrics and /healthz\n"


def _is_connected(numbers: dict[str, int]) -> bool:
    return bool(numbers["is_connected"])


def metrics(supervisor: "Supervisor") -> str:
    """In the text format of Prometheus."""
    children = supervisor.children
    by_task = supervisor.totals.by_task(children)
    lines = ["# TYPE manyhands_worker_jobs_total counter"]
    for task, tally in sorted(by_task.items()):
        lines += [
            f'manyhands_worker_jobs_total{{task="{_quoted(task)}",outcome="{outcome}"}} '
            f"{getattr(tally, outcome)}"
            for outcome in OUTCOMES
        ]
    lines.append("# TYPE manyhands_worker_run_seconds_total counter")
    lines += [
        f'manyhands_worker_run_seconds_total{{task="{_quoted(task)}"}} {tally.seconds:.6f}'
        for task, tally in sorted(by_task.items())
    ]
    figures = [child.figures for child in children if child.figures is not None]
    numbers = {
        "processes": len(children),
        "processes_connected": sum(each.is_connected for each in figures),
        "slots_used": sum(each.running for each in figures),
        "ahead": sum(each.ahead for each in figures),
        "last_contact_seconds": round(max((each.silence for each in figures), default=0.0), 3),
    }
    for name, number in numbers.items():
        lines += [f"# TYPE manyhands_worker_{name} gauge", f"manyhands_worker_{name} {number}"]
    counters = {
        "deaths_total": supervisor.totals.deaths,
        "reconnects_total": supervisor.totals.reconnects(children),
    }
    for name, number in counters.items():
        lines += [f"# TYPE manyhands_worker_{name} counter", f"manyhands_worker_{name} {number}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
