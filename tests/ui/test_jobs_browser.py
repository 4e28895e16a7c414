"""Jobs, a job, failures and events in a real browser: found, watched, changed, and their looks."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.e2e.serving import Api, serving, wait_until
from tests.ui.looking import Looking
from tests.ui.sample import fill
from tests.ui.test_appearance import look

PAGES = {
    "jobs": "jobs",
    "jobs-searched": "jobs?q=queue:work+state:failed",
    "jobs-broken": "jobs?q=sate:failed",
    "job-ready": "job/{ready}",
    "job-leased": "job/{leased}",
    "job-failed": "job/{failed}",
    "job-retrying": "job/{retrying}",
    "job-blocked": "job/{blocked}",
    "job-completed": "job/{completed}",
    "job-binary": "job/{binary}",
    "job-hostile": "job/{hostile}",
    "job-graph": "job/{middle}",
    "failures": "failures",
    "failure": "failures/{group}",
    "events": "events",
}


@pytest.fixture(scope="module", autouse=True)
def filled(served):
    client = Api(served)
    ids = fill(client)
    first = [client.results("submit", queue="build", payload=n)["id"] for n in range(14)]
    middle = client.results("submit", queue="build", payload="link", depends_on=first)["id"]
    for number in range(3):
        client.results("submit", queue="test", payload=number, depends_on=[middle])
    ids["middle"] = middle
    ids["group"] = client.get("failures")[0]["group"]
    client.close()
    return ids


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("empty")) as server:
        yield server


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read_by_everybody(browser, served, filled, name, theme):
    assert look(browser, served.url, name, theme, PAGES[name].format(**filled)) == []


@pytest.mark.parametrize("name", ["jobs", "failures", "events"])
def test_an_empty_page_tells_what_there_will_be(browser, empty, name):
    assert look(browser, empty.url, f"{name}-empty", "light", name) == []
    window = Looking(browser, empty.url)
    expect(window.at(name).locator(".empty .headline")).to_have_count(1)
    window.close()


# Searching.


def test_names_that_come_after_one_was_chosen_do_not_open_the_list_again(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("jobs")
    field = page.get_by_role("combobox", name="Search")
    field.fill(f"queue:{queue[:30]}")
    expect(page.get_by_role("option", name=f"queue:{queue}")).to_be_visible()

    held = []
    page.route("**/api/queues?*", lambda route: held.append(route))  # noqa: PLW0108 - it asks for a signature
    with page.expect_request("**/api/queues?*"):
        field.press_sequentially(queue[30])
    field.press("ArrowDown")
    field.press("Enter")
    expect(field).to_have_value(f"queue:{queue} ")
    with page.expect_response("**/api/queues?*") as answered:
        held[0].continue_()
    answered.value.finished()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    expect(page.get_by_role("listbox")).to_be_hidden()


def test_a_name_that_was_marked_stays_marked_when_a_later_answer_brings_it_again(
    looking, api, queue
):
    api.results("submit", queue=queue, payload=1)
    page = looking.at("jobs")
    field = page.get_by_role("combobox", name="Search")
    field.fill(f"queue:{queue[:30]}")
    option = page.get_by_role("option", name=f"queue:{queue}")
    expect(option).to_be_visible()

    held = []
    page.route("**/api/queues?*", lambda route: held.append(route))  # noqa: PLW0108 - it asks for a signature
    with page.expect_request("**/api/queues?*"):
        field.press_sequentially(queue[30])
    field.press("ArrowDown")
    first = option.element_handle()
    held[0].continue_()
    page.wait_for_function("item => !item.isConnected", arg=first)

    expect(option).to_have_attribute("aria-selected", "true")
    field.press("Enter")
    expect(field).to_have_value(f"queue:{queue} ")


def test_qualifiers_and_names_of_queues_are_completed_by_keyboard(looking, api, queue):
    api.results("submit", queue=f"{queue} with blanks", payload=1)
    page = looking.at("jobs")
    field = page.get_by_role("combobox", name="Search")

    field.press_sequentially("que")
    expect(page.locator("#completion li")).to_have_count(1)
    field.press("ArrowDown")
    field.press("Enter")
    expect(field).to_have_value("queue:")
    field.press_sequentially(queue[:30])
    expect(page.get_by_role("option", name=f'queue:"{queue} with blanks"')).to_be_visible()
    expect(page.locator("#completion li")).to_have_count(1)  # the list has followed the typing
    field.press("ArrowDown")
    field.press("Enter")

    expect(field).to_have_value(f'queue:"{queue} with blanks" ')
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("listbox")).to_be_hidden()


def test_completions_stay_while_the_page_is_refreshed(looking, api, queue):
    page = looking.at("jobs")
    looking.live()
    page.get_by_role("combobox", name="Search").press_sequentially("sta")
    expect(page.locator("#completion li")).to_have_count(1)

    with page.expect_response(re.compile(r"/ui/jobs")):
        api.results("submit", queue=queue, payload="statement")
    expect(page.locator("tbody").get_by_text("statement").first).to_be_visible()

    expect(page.locator("#completion li")).to_have_count(1)


def test_completions_are_there_once_the_first_job_is(browser, tmp_path):
    with serving(tmp_path) as server:
        window = Looking(browser, server.url)
        page = window.at("jobs")
        window.live()
        expect(page.get_by_text("There is no job yet.")).to_be_visible()

        client = Api(server)
        client.results("submit", queue="first", payload=1)
        client.close()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("combobox", name="Search").press_sequentially("que")

        expect(page.get_by_role("option", name="queue:")).to_be_visible()
        window.close()


def test_a_search_is_done_while_it_is_typed_and_stays_in_the_address(looking):
    page = looking.at("jobs")

    # At once: on a slow machine each key would be a search, and a step of the history.
    page.get_by_role("combobox", name="Search").fill("tag:news")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("q=tag"))
    page.get_by_role("combobox", name="Search").fill("tag:news state:nope")
    expect(page.get_by_text("A state is one of")).to_be_visible()
    page.go_back()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_search_that_takes_long_is_gone_on_with_by_itself(looking, api, queue):
    """The answer that came too early is played: enough jobs to make it so would take minutes."""
    job_id = api.results("submit", queue=queue, payload="needle")["id"]
    page = looking.at("jobs")
    early = (
        '<main id="main"><div id="found"><p id="further"><a href="{0}" hx-get="{0}"'
        ' hx-trigger="load delay:50ms, click" hx-sync="#search:replace" hx-target="#found"'
        ' hx-select="#found" hx-swap="morph" hx-replace-url="true">more</a></p></div></main>'
    ).format(f"/ui/jobs?q=queue:{queue}&amp;patient=1")
    page.route(
        re.compile(r"/ui/jobs\?q=queue[^&]*&order=newest$"),
        lambda route: route.fulfill(body=early, content_type="text/html"),
    )

    page.get_by_role("combobox", name="Search").fill(f"queue:{queue}")

    expect(page.get_by_label(f"Choose job {job_id}")).to_be_visible()
    expect(page).to_have_url(re.compile("patient=1"))
    expect(page.locator("#found")).to_have_attribute("data-slow", "")


def test_states_narrow_the_search(looking):
    page = looking.at("jobs?q=queue:work")

    page.get_by_role("navigation", name="States").get_by_role("link", name="failed").click()

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("combobox", name="Search")).to_have_value("state:failed queue:work")


def test_a_new_job_appears_without_reloading_and_choices_stay(looking, api, queue):
    first = api.results("submit", queue=queue, payload=1)["id"]
    page = looking.at(f"jobs?q=queue:{queue}")
    looking.live()
    page.get_by_label(f"Choose job {first}").check()

    api.results("submit", queue=queue, payload=2)

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label(f"Choose job {first}")).to_be_checked()
    expect(page.get_by_text("1 chosen")).to_be_visible()


# Operations on many jobs.


def test_chosen_jobs_are_cancelled_after_a_question(looking, api, queue):
    ids = [api.results("submit", queue=queue, payload=number)["id"] for number in range(3)]
    page = looking.at(f"jobs?q=queue:{queue}")
    page.get_by_label("Choose all on this page").check()
    page.get_by_label(f"Choose job {ids[0]}").uncheck()
    expect(page.get_by_text("2 chosen")).to_be_visible()
    page.get_by_label("What to do").select_option("cancel")
    looking.button("Apply…").click()

    expect(page.get_by_text("Cancel 2 jobs?")).to_be_visible()
    looking.button("Cancel 2 jobs").click()

    expect(page.locator(".badge").filter(has_text="completed")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()
    assert api.get(f"queues/{queue}")["counts"]["cancelled"] == 2


def test_a_whole_search_is_moved_and_the_way_there_is_shown(looking, api, queue):
    for number in range(60):
        api.results("submit", queue=queue, payload=number)
    page = looking.at(f"jobs?q=queue:{queue}")
    page.get_by_label("all 60 that match").check()
    page.get_by_label("What to do").select_option("move")
    page.get_by_label("Queue to move to").fill(f"{queue}-2")
    looking.button("Apply…").click()
    looking.button("Move 60 jobs").click()

    expect(page.get_by_text("60 of 60")).to_be_visible()
    assert api.get(f"queues/{queue}-2")["counts"]["ready"] == 60


def test_an_operation_works_without_scripts(browser, served, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    window = Looking(browser, served.url, java_script_enabled=False)
    page = window.at(f"jobs?q=queue:{queue}")
    page.get_by_label(f"Choose job {job_id}").check()
    page.get_by_label("What to do").select_option("cancel")
    window.button("Apply…").click()
    window.button("Cancel 1 job").click()
    expect(page.get_by_role("heading", name="Cancel 1 job")).to_be_visible()
    wait_until(lambda: api.get(f"jobs/{job_id}")["state"] == "cancelled")
    window.at(f"job/{job_id}")
    expect(page.locator(".job-head .badge")).to_have_text("cancelled")
    window.close()


# One job.


def test_progress_and_the_end_are_seen_without_reloading(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    [job] = api.results("claim", queue=queue, worker="w")
    proof = {"id": job["id"], "token": job["token"]}
    page = looking.at(f"job/{job['id']}")
    looking.live()

    api.results("progress", **proof, numerator=3, denominator=10)
    expect(page.get_by_text("3 of 10")).to_be_visible()
    api.results("complete", **proof, result={"answer": 42})

    expect(page.locator(".job-head .badge")).to_have_text("completed")
    expect(page.get_by_role("heading", name="Result")).to_be_visible()


def test_a_tree_is_opened_and_closed_and_stays_so(looking, api, queue):
    payload = {"outer": {"inner": {"deep": {"deeper": "found"}}}}
    job_id = api.results("submit", queue=queue, payload=payload)["id"]
    page = looking.at(f"job/{job_id}")
    looking.live()
    expect(page.get_by_text("“found”")).to_be_hidden()
    page.get_by_text("deep", exact=True).click()
    expect(page.get_by_text("“found”")).to_be_visible()

    api.results("priority", id=job_id, priority=9)

    expect(page.locator(".facts").get_by_text("9", exact=True)).to_be_visible()
    expect(page.get_by_text("“found”")).to_be_visible()
    page.get_by_role("link", name="text", exact=True).click()
    expect(page.locator("#t-payload")).to_contain_text('{"outer":')


def test_a_tree_is_copied_as_it_was_sent(looking, api, queue):
    sent = {"b": [1, 12345678901234567890], "a": "\u202e<i>"}
    page = looking.at(f"job/{api.results('submit', queue=queue, payload=sent)['id']}")
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { copied = text; }; }")

    page.locator("#c-payload").get_by_role("button", name="Copy", exact=True).click()

    expect(page.locator("#c-payload").get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(page.evaluate("copied")) == sent


def test_the_graph_leads_to_other_jobs(looking, filled):
    page = looking.at(f"job/{filled['middle']}")

    expect(page.locator("svg.graph").get_by_text("4 more")).to_be_visible()
    page.locator("svg.graph a").first.click()

    expect(page).not_to_have_url(re.compile(filled["middle"]))
    expect(page.locator(".job-head .badge")).to_have_text("ready")


def test_a_job_is_changed_in_place(looking, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    page = looking.at(f"job/{job_id}")

    page.get_by_label("Tag", exact=True).fill("blue")
    looking.button("Add").click()
    expect(page.get_by_text("The job now has the tag blue.")).to_be_visible()
    page.get_by_label("Priority").fill("lots")
    looking.button("Set").click()
    expect(page.get_by_text("A priority is a number")).to_be_visible()
    page.get_by_label("Priority").fill("12")
    looking.button("Set").click()
    expect(page.get_by_text("The priority is now 12.")).to_be_visible()
    looking.button("Cancel…").click()
    looking.button("Cancel the job").click()
    expect(page.locator(".job-head .badge")).to_have_text("cancelled")
    looking.button("Retry").click()
    expect(page.locator(".job-head .badge")).to_have_text("ready")

    shown = api.get(f"jobs/{job_id}")
    assert (shown["tags"], shown["priority"], shown["incarnation"]) == (["blue"], 12, 1)


# Failures and events.


def test_a_group_of_failures_is_retried(looking, api, queue):
    for number in range(2):
        api.results("submit", queue=queue, payload=number)
        [job] = api.results("claim", queue=queue, worker="w")
        why = {"code": queue, "message": f"number {number}", "retry": False}
        api.results("fail", id=job["id"], token=job["token"], **why)
    page = looking.at(f"failures?queue={queue}")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Retry 2 jobs").click()
    expect(page.get_by_text("Retry 2 jobs?")).to_be_visible()
    looking.button("Retry 2 jobs").click()

    expect(page.get_by_text("2 of 2")).to_be_visible()
    assert api.get(f"queues/{queue}")["counts"]["ready"] == 2


def test_events_come_in_by_themselves_and_only_those_wanted(looking, api, queue):
    page = looking.at(f"events?topic=ready.%23.{queue}")
    looking.live()
    expect(page.locator("tbody tr")).to_have_count(0)

    job_id = api.results("submit", queue=queue, payload=1)["id"]
    api.results("cancel", ids=[job_id])

    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody .badge")).to_have_text("ready")


def test_events_can_be_read_without_scripts(browser, served):
    window = Looking(browser, served.url, java_script_enabled=False)
    page = window.at("events")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_label("Topics").fill("failed.#")
    window.button("Show").click()
    expect(page.locator("tbody .badge").first).to_have_text("failed")
    window.close()
