"""About the server: versions, the store, addresses, configuration."""

import asyncio
import os
import platform
from typing import Any

from manyhands import __version__
from manyhands.config import OPTIONS
from manyhands.ui import words
from manyhands.ui.page import Page, Shown
from manyhands.ui.visit import Visit

_LINKS = (
    ("/metrics", "metrics for Prometheus"),
    ("/openapi.json", "the API as an OpenAPI document"),
    ("/docs", "the API documentation"),
    ("/healthz", "whether the server is healthy"),
    ("/readyz", "whether it is ready for work"),
    ("/api/about", "this page as JSON"),
)
# What counts against the memory budget, as the page calls it.
_HELD = {
    "gathering": "gathering for a commit",
    "frames": "being written to disk",
    "recent": "on disk, not in the database yet",
    "jobs": "unfinished jobs",
    "records": "finished jobs",
    "messages": "incomplete messages",
    "answers": "unread answers",
}
# What the store says of itself, where its own word is too short for a page.
_FACTS = {
    "bytes": "database",
    "log_bytes": "write-ahead log",
    "journal_bytes": "journal",
    "schema": "schema version",
}


class About(Page):
    """The server itself."""

    name = "about"
    title = "About"

    async def show(self, visit: Visit) -> Shown:  # noqa: ARG002 - as every page
        sources = self.sources
        facts = await asyncio.to_thread(sources.store.facts)
        free = await asyncio.to_thread(sources.store.free_bytes)
        durable = facts.get("kind") != "memory"
        values = {
            "facts": [
                (_FACTS.get(name, name.replace("_", " ")), _fact(name, value))
                for name, value in facts.items()
            ],
            "free": None if free is None else words.size(free),
            "durability": "on stable storage before it is acknowledged"
            if durable
            else "in memory only: lost when the process ends",
            "full": sources.dispatcher.store_full,
            "memory_limit": words.size(sources.budget.bytes_max),
            "memory": [
                (_HELD[kind], words.size(count))
                for kind, count in sources.budget.held_bytes().items()
            ],
            "peers_waiting": sources.budget.waiting_count,
            "started_at": sources.condition.started_at,
            "addresses": sources.condition.addresses,
            "relay": sources.relay_facts(),
            "links": _LINKS,
            "versions": [
                ("Manyhands", __version__),
                ("Python", platform.python_version()),
                ("system", f"{platform.system()} {platform.machine()}"),
                ("event loop", type(asyncio.get_running_loop()).__module__.partition(".")[0]),
                ("process", str(os.getpid())),
            ],
            "options": [(name, _option(getattr(sources.config, name))) for name in OPTIONS],
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
