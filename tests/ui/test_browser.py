"""Pages and actions in a real browser: what is seen, what changes by itself, what is pressed."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.serving import Api, own_address, serving, start, wait_until
from tests.ui.looking import Looking
from tests.ui.sample import fill

pytestmark = pytest.mark.usefixtures("filled")


def count_of(page, queue: str, column: str):
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=queue, exact=True))
    return row.locator(f'td[data-label="{column}"]')


def test_a_new_job_is_seen_without_reloading(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues?q=" + queue)
    looking.live()
    page.evaluate("window.sameDocument = true")
    expect(count_of(page, queue, "Ready")).to_have_text("1")

    api.results("submit", queue=queue, payload=2)

    expect(count_of(page, queue, "Ready")).to_have_text("2")
    assert page.evaluate("window.sameDocument")


def test_what_somebody_types_and_opened_survives_a_refresh(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("schedules")
    looking.live()
    page.get_by_label("Name").fill("half a na")

    looking.at(f"queue?name={queue}&tab=settings")
    looking.live()
    page.get_by_label("Attempts").fill("7")
    with page.expect_response(re.compile("/ui/queue")):
        api.results("submit", queue=queue, payload=2)

    expect(page.locator(".tabs").get_by_role("link", name="ready 2")).to_be_visible()
    expect(page.get_by_label("Attempts")).to_have_value("7")
    expect(page.get_by_label("Attempts")).to_be_focused()


def test_live_updates_can_be_paused(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues?q=" + queue)
    looking.live()
    page.locator("#live").click()
    expect(page.locator("#live")).to_have_text("paused")

    # Another page has long seen it when this one still must not have.
    api.results("submit", queue=queue, payload=2)
    other = Looking(page.context.browser, looking.url)
    expect(count_of(other.at("queues?q=" + queue), queue, "Ready")).to_have_text("2")
    other.close()
    expect(count_of(page, queue, "Ready")).to_have_text("1")

    page.locator("#live").click()
    expect(count_of(page, queue, "Ready")).to_have_text("2")
    expect(page.locator("#live")).to_have_text("live")


def test_a_hidden_page_lets_go_of_its_stream(looking):
    page = looking.at("queues")
    looking.live()

    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'));"
    with page.expect_event("requestfailed", lambda request: "/ui/live" in request.url):
        page.evaluate(hide % "true" + tell)
    with page.expect_request(re.compile("/ui/live")):
        page.evaluate(hide % "false" + tell)

    looking.live()


def test_a_queue_is_paused_and_resumed_in_place(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues?q=" + queue)

    looking.button(f"Pause queue {queue}").click()
    expect(page.get_by_text(f"Queue {queue} is paused.")).to_be_visible()
    assert api.get(f"queues/{queue}")["paused"]

    looking.button(f"Resume queue {queue}").click()
    expect(page.get_by_text(f"Queue {queue} is resumed.")).to_be_visible()
    expect(looking.button(f"Pause queue {queue}")).to_be_visible()
    assert not api.get(f"queues/{queue}")["paused"]


def test_a_second_click_at_the_same_place_hits_the_same_button(looking, api, queue):
    names = [f"{queue}-{letter}" for letter in "abc"]
    for name in names:
        api.results("submit", queue=name, payload=1)
    page = looking.at("queues?q=" + queue)
    looking.live()
    place = looking.button(f"Pause queue {names[1]}").bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2

    page.mouse.click(x, y)
    expect(page.get_by_text(f"Queue {names[1]} is paused.")).to_be_visible()
    page.mouse.click(x, y)

    expect(page.get_by_text(f"Queue {names[1]} is resumed.")).to_be_visible()
    assert [api.get(f"queues/{name}")["paused"] for name in names] == [False] * 3


def test_queues_are_found_while_typing(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("queues")

    # At once: on a slow machine each key would be a search, and a step of the history.
    page.get_by_label("Name contains").fill(queue[5:])

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(f"q={queue[5:]}"))
    page.go_back()
    expect(page.get_by_role("link", name="mail", exact=True)).to_be_visible()


def test_a_queue_shows_its_jobs_by_state(looking, filled):
    page = looking.at("queue?name=mail")

    page.locator(".tabs").get_by_role("link", name="delayed").click()

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody th a")).to_have_attribute(
        "href", re.compile(f"^/ui/job/{filled['delayed']}[?]")
    )


def test_a_queue_draws_its_charts_and_tells_their_numbers(looking):
    page = looking.at("queue?name=work")

    expect(page.locator("#chart-throughput canvas")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Wait times"))).to_be_visible()
    page.locator("#chart-throughput summary").click()
    expect(page.locator("#chart-throughput table tbody tr").first).to_be_visible()
    page.get_by_role("link", name="7d").click()
    expect(page).to_have_url(re.compile("range=7d"))
    expect(page.locator("#chart-throughput canvas")).to_be_visible()


def test_settings_are_saved_and_mistakes_stay_in_their_fields(looking, api):
    page = looking.at("queue?name=mail&tab=settings")
    page.get_by_label("Attempts").fill("plenty")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.get_by_text("This must be a whole number.")).to_be_visible()
    expect(page.get_by_label("Attempts")).to_have_attribute("aria-invalid", "true")

    page.get_by_label("Attempts").fill("9")
    page.get_by_role("button", name="Save the settings").click()

    expect(page.get_by_text("The settings of queue mail are changed.")).to_be_visible()
    assert api.get("queues/mail")["policy"] == {"attempts_max": 9}


def test_an_empty_queue_is_deleted_after_a_question(looking, api, queue):
    api.http.put(f"/api/queues/{queue}", json={"paused": False})
    page = looking.at(f"queue?name={queue}&tab=settings")

    page.get_by_role("button", name="Delete queue…").click()
    expect(page.get_by_text(f"Delete queue {queue}?")).to_be_visible()
    page.get_by_role("button", name="Delete the queue").click()

    expect(page.get_by_text(f"Queue {queue} is deleted.")).to_be_visible()
    assert api.http.get(f"/api/queues/{queue}").status_code == 404


def test_a_queue_in_use_is_not_deleted(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at(f"queue?name={queue}&tab=settings")

    page.get_by_role("button", name="Delete queue…").click()
    page.get_by_role("button", name="Delete the queue").click()

    expect(page.locator(".toast")).to_contain_text("Refused:")
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


def test_workers_are_seen_with_what_they_hold_and_lose_it_after_a_question(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    [job] = api.results("claim", queue=queue, worker="tired-worker", term_ms=3_600_000)
    page = looking.at("workers?q=tired")
    row = page.get_by_role("row").filter(has_text="tired-worker")
    expect(row.locator('td[data-label="Holding for"]')).to_have_text(re.compile(r"\d+ m?s"))
    expect(row.locator('td[data-label="Lease ends"]')).to_contain_text("in ")
    expect(row.get_by_role("link", name=job["id"][-12:])).to_be_visible()

    looking.button("Release… the jobs of worker tired-worker").click()
    page.get_by_role("button", name="Release 1 job").click()

    expect(page.get_by_text("1 job of worker tired-worker are ready again.")).to_be_visible()
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 1


def test_a_schedule_is_made_and_run_from_its_page(looking, api, queue):
    page = looking.at("schedules")
    page.get_by_label("Name").fill(queue)
    page.get_by_label("Queue").fill(queue)
    page.get_by_label("When").fill("every 1 h")
    page.get_by_label("Payload").fill('{"a": [1, 2]}')
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text(f"The schedule {queue} is set.")).to_be_visible()

    looking.button(f"Run now: schedule {queue}").click()

    expect(page.locator(".toast")).to_contain_text("made job")
    [job] = api.get(f"jobs?queue={queue}")
    assert api.get(f"jobs/{job['id']}")["payload"] == {"a": [1, 2]}


def test_a_limit_is_set_and_removed(looking, api, queue):
    page = looking.at("limits")
    page.get_by_label("Name").fill(queue)
    page.get_by_label("Concurrency").fill("lots")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.get_by_text("This must be a whole number.")).to_be_visible()
    page.get_by_label("Concurrency").fill("4")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.locator(".toast")).to_contain_text("At most 4 jobs")

    looking.button(f"Remove limit {queue}").click()
    page.get_by_role("button", name="Remove the limit").click()

    expect(page.get_by_text(f"The limit {queue} is removed.")).to_be_visible()
    assert queue not in [row["name"] for row in api.get("limits")]


@pytest.fixture
def troubled(tmp_path):
    """A server of its own: the overview has room for some troubles, not for those of all tests."""
    with serving(tmp_path) as server:
        client = Api(server)
        fill(client)
        client.http.put("/api/queues/held-back", json={"paused": True})
        client.results("submit", queue="held-back", payload=1)
        client.close()
        yield server


def test_the_overview_tells_what_needs_a_person(browser, troubled):
    window = Looking(browser, troubled.url)
    page = window.page
    attention = page.get_by_role("region", name="Needs attention")
    # Counting failures may take longer than a page waits for it: the next one has them.
    wait_until(lambda: window.at("").get_by_text("no answer").count())

    paused = attention.get_by_role("listitem").filter(has_text="held-back")
    expect(paused).to_contain_text("paused")
    expect(attention.get_by_text("no answer")).to_be_visible()
    expect(page.get_by_role("region", name=re.compile("Protocols"))).to_contain_text("http")
    tile = page.get_by_role("list", name="Jobs by state").get_by_role("link", name="failed")
    expect(tile).to_have_text("failed1")
    window.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chosen_theme_is_there_at_the_first_paint_of_every_page(looking, theme):
    page = looking.at("queues")
    page.get_by_role("button", name=f"{theme} theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", theme)

    answer = page.goto("/ui/about")

    assert f'data-theme="{theme}"' in answer.text()
    ground = "rgb(246, 245, 242)" if theme == "light" else "rgb(19, 21, 25)"
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == ground


def test_the_theme_follows_the_system_unless_one_was_chosen(browser, served):
    for scheme, ground in (("light", "rgb(246, 245, 242)"), ("dark", "rgb(19, 21, 25)")):
        window = Looking(browser, served.url, color_scheme=scheme)
        page = window.at("about")
        found = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        window.close()
        assert found == ground


def test_every_page_can_be_reached_and_acted_on_by_keyboard(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()

    looking.at("queues?q=" + queue)
    button = looking.button(f"Pause queue {queue}")
    for _ in range(60):
        page.keyboard.press("Tab")
        if button.evaluate("node => node === document.activeElement"):
            break
    page.keyboard.press("Enter")

    expect(page.get_by_text(f"Queue {queue} is paused.")).to_be_visible()


def test_pages_can_be_read_and_used_without_scripts(browser, served, api, queue):
    api.results("submit", queue=queue, payload=1)
    window = Looking(browser, served.url, java_script_enabled=False)
    page = window.at("queues?q=" + queue)
    window.button(f"Pause queue {queue}").click()
    expect(page.locator(".toast")).to_have_text(f"Queue {queue} is paused.")
    # Early in a minute there may be nothing to draw yet, and without scripts nothing is updated.
    wait_until(lambda: window.at("queue?name=work").locator("#chart-throughput svg").count())

    expect(page.locator("#chart-throughput svg")).to_be_visible()
    expect(page.locator(".live")).to_be_hidden()
    window.button("dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    window.close()


def test_a_page_says_that_it_reconnects_and_goes_on_by_itself(browser, tmp_path):
    address = own_address()
    server = start(tmp_path, "--http", address)
    window = Looking(browser, server.url)
    window.forgiven = lambda error: "ERR_" in error or "Failed to load" in error
    try:
        page = window.at("queues")
        window.live()
        server.stop()
        expect(page.locator("#live")).to_have_text("reconnecting")
        server = start(tmp_path, "--http", address)
        client = Api(server)
        client.results("submit", queue="after", payload=1)
        client.close()
        expect(page.get_by_role("link", name="after", exact=True)).to_be_visible()
        window.live()
    finally:
        window.close()
        server.stop()


def test_many_windows_of_one_browser_stay_usable(looking, api, queue):
    """A browser allows six connections to a server: hidden tabs must not hold them all."""
    api.results("submit", queue=queue, payload=1)
    pages = [looking.context.new_page() for _ in range(8)]

    for page in pages:
        page.goto("/ui/queues")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
    expect(looking.at("queues?q=" + queue).get_by_role("link", name=queue)).to_be_visible()

    looking.live()
