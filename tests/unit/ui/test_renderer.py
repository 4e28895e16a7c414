"""Pages leave little behind."""

import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from manyhands.ui.assets import Assets
from manyhands.ui.page import Shown
from manyhands.ui.renderer import Renderer

YOUNG_MAX = 10_000


@pytest.fixture
def rare_collections():
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 1_000)  # as a server does, so that nothing is done by itself
    gc.collect()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("rare_collections")
def test_many_pages_do_not_add_up_to_a_long_pause():
    renderer = Renderer(Assets())
    visit = SimpleNamespace(
        now=0, csrf=str, problems={}, may_act=False, is_part=True, here="/ui/", host="x"
    )
    values = {"rows": (), "toast": None, "span": SimpleNamespace(total=0), "given": {}}
    shown = Shown("limits.html", values, "Limits")
    young = []

    for _ in range(300):
        renderer.render(cast(Any, visit), shown, {})
        young.append(gc.get_count()[0])

    assert max(young) < YOUNG_MAX
