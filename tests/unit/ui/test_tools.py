"""Templates and files, read before somebody needs them."""

import asyncio

from manyhands.ui import tools
from manyhands.ui.renderer import Renderer


def test_templates_are_compiled_soon_after_the_start_and_only_once(monkeypatch):
    compiled = []
    prepare = Renderer.prepare

    def noted(renderer, name):
        compiled.append(name)
        prepare(renderer, name)

    monkeypatch.setattr(Renderer, "prepare", noted)
    monkeypatch.setattr(tools, "_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(tools, "_REST_SECONDS", 0.0)

    async def start():
        made = tools.Tools()
        await made.prepare()
        await made.prepare()

    asyncio.run(start())

    assert {"overview.html", "job.html", "parts.html"} <= set(compiled)
    assert len(compiled) == len(set(compiled))
