"""One search for everything, operations in one list, and how pages are shown to each reader."""

import re
from html import unescape

import pytest
from playwright.sync_api import expect

from tests.e2e.serving import wait_until
from tests.ui.looking import Looking
from tests.ui.test_jobs_requests import fields_of, send, text_of
from tests.ui.test_operating import links


def found(http, words: str):
    return http.get("/ui/find", params={"q": words})


def test_an_id_in_any_form_leads_to_the_job(http, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    dashed = re.sub(r"(.{8})(.{4})(.{4})(.{4})(.{12})", r"\1-\2-\3-\4-\5", job_id)

    for written in (job_id, dashed, f"H:some.host:{job_id}", job_id[-12:]):
        answer = found(http, written)
        assert (answer.status_code, answer.headers.get("location")) == (303, f"/ui/job/{job_id}")


def test_the_end_of_an_id_leads_to_its_job_and_not_to_those_that_mention_it(http, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    api.results("submit", queue=queue, payload={"parent": job_id})

    answer = found(http, job_id[-12:])

    assert (answer.status_code, answer.headers.get("location")) == (303, f"/ui/job/{job_id}")


def test_the_name_of_a_queue_or_a_worker_leads_to_its_page(http, api):
    api.results("submit", queue="a queue to find", payload=1)
    api.results("claim", queue="a queue to find", worker="a finder", term_ms=3_600_000)

    queue, worker = found(http, "a queue to find"), found(http, "a finder")

    assert queue.headers["location"] == "/ui/queue?name=a+queue+to+find"
    assert worker.headers["location"].startswith("/ui/worker?realm=native&name=a+finder")


def test_part_of_a_name_shows_all_that_have_it(http, api):
    for number in range(2):
        api.results("submit", queue=f"partly-{number}", payload="partly found")
        api.results(
            "claim", queue=f"partly-{number}", worker=f"partly-w-{number}", term_ms=3_600_000
        )

    page = found(http, "partly")

    assert len(set(links(page.text, "partly-w-"))) == 2
    assert len([to for to in links(page.text, "partly-") if "/ui/queue?" in to]) >= 2
    assert "partly found" in page.text


def test_conditions_lead_to_the_search_of_jobs(http):
    assert found(http, "state:failed queue:x").headers["location"].startswith("/ui/jobs?q=state")


def test_what_is_not_found_is_said_with_what_was_looked_through(http):
    page = text_of(found(http, "no-such-thing-anywhere"))

    assert "Nothing was found." in page
    assert "payloads, names and failures" in page


def test_operations_are_listed_with_what_they_changed(http, api, queue):
    for number in range(3):
        api.results("submit", queue=queue, payload=number)
    asked = send(http, "jobs", action="cancel", all="yes", q=f"queue:{queue}")
    done = http.post("/ui/jobs", data={**fields_of(asked), "confirmed": "yes"})
    place = done.headers["location"]
    wait_until(lambda: "badge state-completed" in http.get(place).text)

    page = http.get("/ui/bulk")
    one = text_of(http.get(place))

    assert place in links(page.text, "Cancel 3 jobs")
    assert f"queue:{queue}" in unescape(page.text)
    assert f"queue:{queue}" in one
    assert "has started" not in one


def test_a_queue_whose_workers_poll_is_not_said_to_have_none(http, api, queue):
    api.results("submit", items=[{"queue": queue, "payload": n} for n in range(2)])
    [job] = api.results("claim", queue=queue, worker="w")
    api.results("complete", id=job["id"], token=job["token"])

    def row() -> str:
        page = http.get("/ui/queues", params={"q": queue}).text
        return re.search(r'data-label="Workers">(.*?)</td>', page, re.DOTALL)[1]

    wait_until(lambda: "polling" in row())


@pytest.mark.parametrize(("name", "word"), [("rows", "comfortable"), ("time", "local")])
def test_how_pages_are_shown_is_remembered_without_scripts(http, name, word):
    assert send(http, "theme", **{name: word}).status_code == 303

    assert f'data-{name}="{word}"' in http.get("/ui/jobs").text
    assert send(http, "theme", **{name: "sideways"}).status_code == 400


def test_one_key_leads_to_the_search(looking, filled):
    page = looking.at("queues")

    page.locator("main").focus()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type(filled["completed"][-12:])
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(filled["completed"]))


def test_times_are_shown_as_the_readers_clock_has_them(browser, served, filled):
    window = Looking(browser, served.url, timezone_id="Asia/Kolkata")
    page = window.at(f"job/{filled['completed']}")
    instant = page.locator("time[data-form=instant]").first
    expect(instant).to_have_text(re.compile("UTC$"))

    page.get_by_role("button", name="local").click()
    expect(instant).to_have_text(re.compile(r"\+05:30$"))
    page.reload()
    expect(instant).to_have_text(re.compile(r"\+05:30$"))
    page.get_by_role("button", name="UTC").click()
    expect(instant).to_have_text(re.compile("UTC$"))
    window.close()


def test_a_row_is_one_line_until_more_room_is_wanted(looking, filled):
    page = looking.at("jobs")
    row = page.locator(f"#j-{filled['failed']}")
    compact = row.bounding_box()["height"]

    page.get_by_role("button", name="comfortable").click()

    assert compact <= 40
    assert row.bounding_box()["height"] > compact


@pytest.mark.parametrize("width", [820, 1024, 1440])
@pytest.mark.parametrize("path", ["", "?by=protocol", "queue?name=work"])
def test_a_chart_does_not_move_when_its_numbers_are_shown(looking, filled, path, width):  # noqa: ARG001
    looking.page.set_viewport_size({"width": width, "height": 900})
    page = looking.at(path)
    plot = page.locator("#plot-throughput .u-over")
    plot.scroll_into_view_if_needed()
    before = plot.bounding_box()

    plot.hover(position={"x": before["width"] - 3, "y": 40})
    expect(page.locator("#chart-throughput .legend .at output")).to_have_text(re.compile("UTC"))

    assert plot.bounding_box() == before


def test_a_log_grows_while_somebody_reads_it(looking, api, queue):
    api.results("submit", queue=queue, payload=1)
    [job] = api.results("claim", queue=queue, worker="w", term_ms=3_600_000)
    proof = {"id": job["id"], "token": job["token"]}
    page = looking.at(f"job/{job['id']}")
    looking.live()

    api.results("log", **proof, message="first line")
    expect(page.locator("#log li.log")).to_have_count(1)
    api.results("partial", **proof, payload="odd", warning=True)
    expect(page.locator("#log li.warning")).to_have_count(1)

    api.results("partial", **proof, payload="some output")
    expect(page.locator("#log li.data")).to_have_count(1)
    page.locator("#f-log").fill("first")
    expect(page.locator("#log li")).to_have_count(1)


def test_a_log_is_kept_in_order_and_is_no_partial_result(api, queue):
    api.results("submit", queue=queue, payload=1)
    [job] = api.results("claim", queue=queue, worker="w", term_ms=3_600_000)
    proof = {"id": job["id"], "token": job["token"]}
    api.results("log", **proof, message="begun")
    api.results("partial", **proof, payload="half")
    api.results("log", **proof, message="nearly over", warning=True)

    log = api.get(f"jobs/{job['id']}/log")

    assert [(row["kind"], row["number"]) for row in log] == [
        ("log", 1),
        ("data", 2),
        ("warning", 3),
    ]
    assert [row["payload"] for row in log] == ["begun", '"half"', "nearly over"]
    assert len(api.get(f"jobs/{job['id']}/log?text=over")) == 1
    assert len(api.get(f"jobs/{job['id']}/log?after=2")) == 1
    assert [row["number"] for row in api.get(f"jobs/{job['id']}/partials")] == [2]


def test_a_row_stays_under_the_pointer_and_new_ones_are_counted(looking, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    page = looking.at(f"jobs?q=queue:{queue}")
    looking.live()
    row = page.locator(f"#j-{job_id}")
    row.hover()
    place = row.bounding_box()

    api.results("submit", items=[{"queue": queue, "payload": n} for n in range(3)])
    expect(page.locator("#news")).to_have_text("3 new")

    assert row.bounding_box() == place
    page.locator("#news").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.locator("#news")).to_be_hidden()
