"""What runs here: versions, the store, addresses, configuration."""

import asyncio
import os
import platform
from typing import Any

from manyhands import __version__
from manyhands.config import OPTIONS
from manyhands.server.ui import words
from manyhands.server.ui.page import Page, Shown
from manyhands.server.ui.visit import Visit

_LINKS = (
    ("/metrics", "metrics for Prometheus"),
    ("/openapi.json", "the API for programs that write programs"),
    ("/docs", "the API for people"),
    ("/healthz", "whether the server lives"),
    ("/readyz", "whether it takes work"),
    ("/api/about", "this page as JSON"),
)


class About(Page):
    """The server itself."""

    name = "about"
    title = "About"

    async def show(self, visit: Visit) -> Shown:  # noqa: ARG002 - as every page
        server = self.server
        facts = await asyncio.to_thread(server.store.facts)
        free = await asyncio.to_thread(server.store.free_bytes)
        durable = facts.get("kind") != "memory"
        values = {
            "facts": [
                (name.replace("_", " "), _fact(name, value)) for name, value in facts.items()
            ],
            "free": None if free is None else words.size(free),
            "durability": "on stable storage before it is acknowledged"
            if durable
            else "in memory only: nothing outlives the process",
            "full": server.dispatcher.store_full,
            "started_at": server.started_at,
            "addresses": server.addresses,
            "relay": server.relay_facts(),
            "links": _LINKS,
            "versions": [
                ("Manyhands", __version__),
                ("Python", platform.python_version()),
                ("system", f"{platform.system()} {platform.machine()}"),
                ("event loop", type(asyncio.get_running_loop()).__module__.partition(".")[0]),
                ("process", str(os.getpid())),
            ],
            "options": [(name, _option(getattr(server.config, name))) for name in OPTIONS],
        }
        return Shown("about.html", values, self.title)


def _fact(name: str, value: str | int) -> str:
    if isinstance(value, int):
        return words.size(value) if name.endswith("bytes") else words.number(value)
    return words.visible(value)


def _option(value: Any) -> str:  # noqa: ANN401 - of any kind that an option may have
    if value is None:
        return words.NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.visible(str(value))
