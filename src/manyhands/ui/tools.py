"""What pages are made from: files and templates, read when they are needed or soon after the
start.
"""

import asyncio
from typing import Any, Final

from manyhands.ui.assets import Assets
from manyhands.ui.page import Shown
from manyhands.ui.renderer import Renderer
from manyhands.ui.visit import Visit

# Templates are compiled soon after the start, so that nobody waits for that: one at a time, with
# pauses, because it takes turns with everything else that the server does.
_AFTER_SECONDS: Final = 3.0
_REST_SECONDS: Final = 0.1


class Tools:
    """Files and templates."""

    def __init__(self) -> None:
        self._assets: Assets | None = None
        self._renderer: Renderer | None = None
        self._opening = asyncio.Lock()

    async def prepare(self) -> None:
        """Reads and compiles everything before the first visit."""
        await asyncio.sleep(_AFTER_SECONDS)
        renderer = await self._open()
        for name in renderer.names():
            if not renderer.is_prepared(name):
                await asyncio.to_thread(renderer.prepare, name)
                await asyncio.sleep(_REST_SECONDS)

    async def assets(self) -> Assets:
        """The files that pages load."""
        await self._open()
        assert self._assets is not None
        return self._assets

    async def render(self, visit: Visit, shown: Shown, around: dict[str, Any]) -> str:
        """The HTML of a page."""
        renderer = await self._open()
        if not renderer.is_prepared(shown.template):
            await asyncio.to_thread(renderer.prepare, shown.template)
        return renderer.render(visit, shown, around)

    async def _open(self) -> Renderer:
        async with self._opening:
            if self._renderer is None:
                self._assets = await asyncio.to_thread(Assets)
                self._renderer = await asyncio.to_thread(Renderer, self._assets)
            return self._renderer
