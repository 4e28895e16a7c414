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


TRACE = """Traceback (most recent call last):
  File "/srv/app/billing/of/a/rather/deeply/nested/package/invoices.py", line 88, in send
ConnectionRefusedError: [Errno 111] the database of the invoices does not accept connections"""


@pytest.fixture
def failed(full):
    client = Api(full)
    job = client.results("submit", queue="traced", payload=1)["id"]
    [taken] = client.results("claim", queue="traced", worker="w", term_ms=3_600_000)
    proof = {"id": taken["id"], "token": taken["token"]}
    client.results("fail", **proof, code="error", message=TRACE, retry=False)
    yield job
    client.results("cancel", ids=[job])
    client.close()


def test_an_error_and_the_place_in_the_code_are_read_in_one_line(browser, full, failed):
    window = Looking(browser, full.url, viewport={"width": 1440, "height": 900})
    page = window.at(f"job/{failed}")
    line = page.locator(".failure-code").bounding_box()["height"]
    window.page.set_viewport_size({"width": 360, "height": 900})
    mark, text = (
        page.locator(f".failure-code > {part}").bounding_box() for part in ("svg", "span")
    )
    window.page.set_viewport_size({"width": 1440, "height": 900})

    assert page.locator(".place").bounding_box()["height"] < 1.5 * line
    assert mark["x"] + mark["width"] <= text["x"]
    assert abs(mark["y"] - text["y"]) < line
    window.close()


@pytest.mark.parametrize("width", [700, 768, 1000])
def test_what_went_wrong_has_room_on_a_middling_screen(browser, full, failed, width):  # noqa: ARG001
    window = Looking(browser, full.url, viewport={"width": width, "height": 900})
    page = window.at("failures")

    row = page.locator(".failures tbody tr", has_text="ConnectionRefusedError")
    assert row.locator("th").bounding_box()["width"] > 220
    frame = page.locator(".table-frame").bounding_box()
    for button in row.locator(".actions button").all():
        box = button.bounding_box()
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] - 4
    window.close()


def test_a_queue_takes_little_room_on_a_telephone(browser, full):
    window = Looking(browser, full.url, viewport={"width": 360, "height": 900})
    page = window.at("queues?q=work")

    row = page.locator(".flows tbody tr").first
    assert row.bounding_box()["height"] < 110
    name, button = row.locator("a.name").bounding_box(), row.locator("button").bounding_box()
    assert name["x"] + name["width"] < button["x"]
    window.close()


def test_a_screen_between_a_telephone_and_a_desktop_hides_no_number_of_a_queue(browser, full):
    window = Looking(browser, full.url, viewport={"width": 768, "height": 900})
    page = window.at("queues?q=work")

    name = page.locator(".flows tbody th").first
    expect(name).to_contain_text("1 completed")
    window.page.set_viewport_size({"width": 1440, "height": 900})
    expect(name.locator(".middle-only")).to_be_hidden()
    window.close()


@pytest.mark.parametrize(("width", "height_max"), [(1440, 70), (360, 210)])
def test_the_search_of_the_audit_log_leaves_room_for_the_log(browser, full, width, height_max):
    window = Looking(browser, full.url, viewport={"width": width, "height": 900})
    page = window.at("audit")

    assert page.locator(".filters").bounding_box()["height"] < height_max
    window.close()


@pytest.mark.parametrize("width", [700, 900, 1400])
@pytest.mark.parametrize("path", ["queues", "workers", "schedules", "limits", "failures"])
def test_what_can_be_done_about_a_row_is_in_sight(browser, full, failed, path, width):  # noqa: ARG001
    window = Looking(browser, full.url, viewport={"width": width, "height": 900})
    page = window.at(path)

    frame = page.locator(".table-frame").bounding_box()
    buttons = page.locator(".table-frame .actions :is(button, a)")
    boxes = [button.bounding_box() for button in buttons.all()]
    right = [box["x"] + box["width"] for box in boxes]
    assert right
    assert max(right) <= frame["x"] + frame["width"]
    window.close()


@pytest.mark.parametrize("path", ["jobs", "queue?name=work"])
def test_all_tabs_are_in_sight_on_a_wide_screen(browser, full, path):
    window = Looking(browser, full.url, viewport={"width": 1400, "height": 900})
    page = window.at(path)

    assert page.locator(".tabs ul").evaluate("list => list.scrollWidth <= list.clientWidth")
    window.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_about_the_api_can_be_read_by_everybody(browser, full, theme):
    window = Looking(browser, full.url, color_scheme=theme)
    window.page.goto("/docs")

    assert findings(window.page) == []
    window.close()
