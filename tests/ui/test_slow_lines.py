"""What a slow line does to a page: answers that come late, twice, in another order, or never.

Answers are held back and let go by hand, so that each of these happens every time.
"""

import datetime as dt
import os
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.serving import SECONDS_MAX, Api, serving
from tests.ui.looking import Looking

pytestmark = pytest.mark.usefixtures("filled")


@pytest.fixture
def queue(queue) -> str:
    """Short enough to be shown whole."""
    return queue[:40]


class Held:
    """Requests that wait for the test."""

    def __init__(self, page: Page, wanted) -> None:
        """``wanted`` tells of a request whether it is to wait."""
        self.page = page
        self.routes: list[Route] = []
        self._wanted = wanted
        page.route("**/ui/**", self._meet)

    def _meet(self, route: Route) -> None:
        if self._wanted(route.request):
            self.routes.append(route)
        else:
            route.fallback()

    def first(self) -> Route:
        """The first that waits, once it is there."""
        deadline = time.monotonic() + SECONDS_MAX
        while not self.routes:
            assert time.monotonic() < deadline, "nothing was asked for"
            self.page.wait_for_timeout(20)
        return self.routes[0]

    def end(self) -> None:
        """Nothing waits from now on."""
        self._wanted = lambda _: False


def is_refresh(request) -> bool:
    return "manyhands-refresh" in request.headers


def is_action(request) -> bool:
    return request.method == "POST"


def answered(route: Route):
    """What the server says now, to be given to the page later."""
    return route.fetch(timeout=0)


def stop_clock(looking: Looking) -> None:
    """From now on the page's time goes on by hand alone."""
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    looking.page.clock.install(time=day)
    looking.page.clock.pause_at(day + dt.timedelta(hours=1))


def watched(page: Page, label: str) -> Callable[[], bool]:
    """Whether a button was there from now on, be it for a moment."""
    page.evaluate(
        "label => new MutationObserver(() => window.wasSeen ||="
        " document.querySelector(`button[aria-label='${label}']`) !== null"
        ").observe(document.getElementById('main'),"
        " {subtree: true, childList: true, attributes: true})",
        label,
    )
    return lambda: bool(page.evaluate("window.wasSeen"))


def test_an_answer_from_before_an_action_does_not_take_back_what_it_shows(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.page
    held = Held(page, is_refresh)
    looking.at("queues?q=" + queue)
    old = held.first()
    before = answered(old)
    held.end()

    looking.button(f"Pause queue {queue}").click()
    expect(looking.button(f"Resume queue {queue}")).to_be_visible()
    was_seen = watched(page, f"Pause queue {queue}")
    old.fulfill(response=before)
    api.results("submit", queue=queue, payload=2)

    expect(page.locator('td[data-label="Ready"]')).to_have_text("2")
    expect(looking.button(f"Resume queue {queue}")).to_be_visible()
    assert not was_seen()


def test_of_two_actions_the_later_answer_is_seen_though_it_came_first(looking, api, queue):
    first, second = f"{queue}-1", f"{queue}-2"
    api.results("submit", queue=first, payload=1)
    api.results("submit", queue=second, payload=1)
    page = looking.at("queues?q=" + queue)
    looking.live()
    # In the page itself: an answer that was redirected cannot be held back on its way.
    page.evaluate(
        "() => { const real = window.fetch; window.fetch = async (...given) => {"
        " const answer = await real(...given);"
        " if (given[1]?.method === 'POST' && !window.letGo)"
        " await new Promise((done) => (window.letGo = done));"
        " return answer; } }"
    )
    looking.button(f"Pause queue {first}").click()
    page.wait_for_function("() => window.letGo !== undefined")

    looking.button(f"Pause queue {second}").click()
    expect(looking.button(f"Resume queue {second}")).to_be_visible()
    was_seen = watched(page, f"Pause queue {second}")
    page.evaluate("window.letGo()")

    expect(page.get_by_text(f"Queue {first} is paused.")).to_be_visible()
    expect(looking.button(f"Resume queue {first}")).to_be_visible()
    expect(looking.button(f"Resume queue {second}")).to_be_visible()
    assert not was_seen()


def test_a_button_that_is_pressed_twice_acts_once_and_keeps_the_focus(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues?q=" + queue)
    looking.live()
    held = Held(page, is_action)
    button = looking.button(f"Pause queue {queue}")
    button.focus()
    page.keyboard.press("Enter")
    sent = held.first()
    # Nothing that comes meanwhile makes it ready to be pressed again.
    api.results("submit", queue=queue, payload=2)
    page.keyboard.press("Enter")
    sent.continue_()

    expect(looking.button(f"Resume queue {queue}")).to_be_focused()
    expect(page.locator('td[data-label="Ready"]')).to_have_text("2")
    assert len(held.routes) == 1


def test_an_action_without_an_answer_is_told_and_not_sent_again(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    looking.forgiven = lambda error: "ERR_" in error
    page = looking.at("queues?q=" + queue)
    looking.live()
    held = Held(page, is_action)
    looking.button(f"Pause queue {queue}").click()
    held.first().abort()

    expect(page.locator(".toast")).to_contain_text("it may have been done or not")
    expect(looking.button(f"Pause queue {queue}")).to_be_enabled()
    assert len(held.routes) == 1


def test_a_page_is_live_again_when_a_mistake_is_mended(looking, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    page = looking.at(f"job/{job_id}")
    looking.live()
    page.get_by_label("Priority").fill("lots")
    looking.button("Set").click()
    expect(page.get_by_text("A priority is a number")).to_be_visible()
    page.get_by_label("Priority").fill("12")
    looking.button("Set").click()
    expect(page.get_by_text("The priority is now 12.")).to_be_visible()

    api.results("cancel", ids=[job_id])

    expect(page.locator(".job-head .badge")).to_have_text("cancelled")


def test_news_is_there_for_its_whole_time_however_old_the_news_before_it_is(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues?q=" + queue)
    stop_clock(looking)
    looking.button(f"Pause queue {queue}").click()
    expect(page.get_by_text(f"Queue {queue} is paused.")).to_be_visible()
    page.clock.fast_forward(11_000)
    looking.button(f"Resume queue {queue}").click()
    told = page.get_by_text(f"Queue {queue} is resumed.")
    expect(told).to_be_visible()

    page.clock.fast_forward(11_000)
    expect(told).to_be_visible()
    page.clock.fast_forward(2_000)
    expect(told).to_be_hidden()


def test_a_page_that_is_paused_while_it_fetches_stays_paused(looking):
    page = looking.page
    streams: list[str] = []
    page.on("request", lambda asked: "/ui/live" in asked.url and streams.append(asked.url))
    page.clock.install()
    looking.at("queues")
    looking.live()
    held = Held(page, is_refresh)
    page.clock.fast_forward(10_000)  # after so long ages are brought up to date
    held.first()

    page.locator("#live").click()
    expect(page.locator("#live")).to_have_text("paused")
    page.locator("#live").click()
    expect(page.locator("#live")).to_have_text("live")

    assert len(streams) == 2


def test_what_is_being_pressed_does_not_move_under_the_pointer(looking, api, queue):
    for number in range(2):
        api.results("submit", queue=f"{queue}-{number + 1}", payload=1)
    page = looking.page
    held = Held(page, is_refresh)
    looking.at("queues?q=" + queue)
    api.results("submit", queue=f"{queue}-0", payload=1)  # one more row, above
    refresh = held.first()
    held.end()
    place = looking.button(f"Pause queue {queue}-1").bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.mouse.down()
    with page.expect_event("requestfinished", is_refresh):
        refresh.continue_()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    page.mouse.up()

    expect(page.get_by_text(f"Queue {queue}-1 is paused.")).to_be_visible()
    expect(looking.button(f"Pause queue {queue}-0")).to_be_visible()


@pytest.fixture
def hurried(tmp_path, monkeypatch):
    """A server whose searches are told at once to come to an end: a busy machine is like that."""
    hook = "import manyhands.ui.jobs as jobs\njobs._SECONDS = -1.0\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with serving(tmp_path) as server:
        yield server


def test_a_refresh_finds_all_that_is_seen_already(browser, hurried):
    client, window = Api(hurried), Looking(browser, hurried.url)
    needle = client.results("submit", queue="stack", payload="needle")["id"]
    page = window.at("jobs?q=needle")
    window.live()
    page.get_by_label(f"Choose job {needle}").check()

    for _ in range(60):
        client.results("submit", queue="stack", payload="hay")
    client.results("submit", queue="stack", payload="another needle")
    client.close()

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label(f"Choose job {needle}")).to_be_checked()
    window.close()


def test_a_search_that_took_long_is_live_all_the_same(browser, hurried):
    client, window = Api(hurried), Looking(browser, hurried.url)
    needle = client.results("submit", queue="stack", payload="needle")["id"]
    for _ in range(60):
        client.results("submit", queue="stack", payload="hay")
    page = window.at("jobs?q=needle")
    window.live()
    page.get_by_label(f"Choose job {needle}").check()
    expect(page).to_have_url(re.compile("patient=1"))

    client.results("submit", queue="stack", payload="another needle")
    client.close()

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label(f"Choose job {needle}")).to_be_checked()
    page.go_back()
    expect(page).to_have_url("about:blank")
    window.close()


def test_copying_twice_leaves_the_button_its_word(looking, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    page = looking.at(f"job/{job_id}")
    looking.live()
    stop_clock(looking)
    page.locator("#live").click()  # a refresh would bring the word back, too
    # The system's own takes its time, and here the time goes on by hand.
    page.evaluate("() => { navigator.clipboard.writeText = async () => {}; }")
    button = page.locator("button[data-copy=job-id]")
    button.click()
    expect(button).to_have_text("Copied")
    button.click()

    page.clock.fast_forward(2_000)
    expect(button).to_have_text("Copy id")
