"""How pages look: at three widths, in two themes, empty and full; and whether all can read them."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.serving import Api, serving
from tests.ui.conftest import ROOT, SCREENSHOTS
from tests.ui.looking import Looking
from tests.ui.sample import HOSTILE, fill

AXE = ROOT / ".test-clients/node_modules/axe-core/axe.min.js"
WIDTHS = (320, 768, 1440)
PAGES = {
    "overview": "",
    "queues": "queues",
    "queue": "queue?name=work",
    "queue-ready": "queue?name=mail&tab=ready",
    "queue-leased": "queue?name=work&tab=leased",
    "queue-failed": "queue?name=work&tab=failed",
    "queue-settings": "queue?name=mail&tab=settings",
    "queue-recurring": "queue?name=mail&tab=recurring",
    "queue-retrying": "queue?name=again&tab=retrying",
    "workers": "workers",
    "worker": "worker?realm=native&name=worker-1",
    "find": "find?q=w",
    "operations": "bulk",
    "schedules": "schedules?id=nightly",
    "limits": "limits",
    "audit": "audit",
    "servers": "servers",
    "about": "about",
}
EMPTY = ("overview", "queues", "workers", "schedules", "limits", "audit", "operations")


@pytest.fixture(scope="module")
def full(served):
    client = Api(served)
    fill(client)
    for number in range(40):
        client.results("submit", queue=f"{HOSTILE}{'long' * number}"[:200], payload="x" * 5000)
    client.close()
    return served


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("empty")) as server:
        yield server


def look(browser, url: str, name: str, theme: str, path: str | None = None) -> list[str]:
    """Everything that is wrong with a page, at every width."""
    wrong = []
    for width in WIDTHS:
        size = {"width": width, "height": 900}
        window = Looking(browser, url, viewport=size, color_scheme=theme, reduced_motion="reduce")
        page = window.at(PAGES[name.removesuffix("-empty")] if path is None else path)
        window.live()
        page.wait_for_load_state("load")
        SCREENSHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}-{theme}-{width}.png", full_page=True)
        room = page.evaluate("document.documentElement.scrollWidth")
        if room > width:
            wrong.append(f"{width}: {room} pixels wide")
        # Colours differ by theme and the layout by width: that makes three of six.
        if width == 1440 or (width == 320 and theme == "light"):
            wrong += [f"{width}: {finding}" for finding in findings(page)]
        window.close()
    return wrong


def findings(page) -> list[str]:
    if not AXE.exists():
        if os.environ.get("CI"):
            pytest.fail("not installed: axe-core")
        pytest.skip("not installed: axe-core")
    # Past the policy of the page, as a person's own tools are.
    page.evaluate(Path(AXE).read_text())
    found = page.evaluate("axe.run()")
    return [
        f"{row['impact']} {row['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for row in found["violations"]
        if row["impact"] in ("serious", "critical")
        for node in row["nodes"][:3]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read_by_everybody(browser, full, name, theme):
    assert look(browser, full.url, name, theme) == []


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_page_tells_what_to_do_first(browser, empty, name):
    assert look(browser, empty.url, f"{name}-empty", "light") == []
    window = Looking(browser, empty.url)
    expect(window.at(PAGES[name]).locator(".empty .headline")).to_have_count(1)
    window.close()
