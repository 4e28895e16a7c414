"""Trouble in progress is seen: what fails and is retried, and what an action would change."""

import re
from html import unescape

import pytest

from tests.e2e.serving import wait_until
from tests.ui.test_jobs_requests import fields_of, send, text_of
from tests.ui.test_operating import attention, links

TRACE = """\
Traceback (most recent call last):
  File "/srv/app/charge.py", line 12, in charge
    connect()
DBDown: connection refused
"""


def fail(api, queue: str, count: int, **why) -> list[str]:
    """Jobs of a queue whose first attempt failed."""
    api.results("submit", items=[{"queue": queue, "payload": {"n": n}} for n in range(count)])
    taken = api.results("claim", queue=queue, worker="w", count=count, term_ms=3_600_000)
    for job in taken:
        api.results("fail", id=job["id"], token=job["token"], **why)
    return [job["id"] for job in taken]


def forms(page: str) -> list[dict[str, str]]:
    """The hidden fields of every form of a page."""
    return [
        {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        for form in re.findall(r"<form .*?</form>", page, re.DOTALL)
    ]


def test_an_action_on_failures_of_one_queue_leaves_other_queues_alone(http, api):
    queue = "one-of-two"
    here = fail(api, f"{queue}-here", 2, code="Alike", message=queue, retry=False)
    there = fail(api, f"{queue}-there", 3, code="Alike", message=queue, retry=False)
    page = http.get("/ui/failures", params={"queue": f"{queue}-here"}).text
    (retry,) = [form for form in forms(page) if form.get("action") == "retry"]

    question = send(http, "jobs", **{k: v for k, v in retry.items() if k != "csrf"})

    told = text_of(question)
    assert "Retry 2 jobs?" in told
    assert f"They failed with “Alike: {queue}" in told.replace("<number>", "")
    assert f"Only those of queue {queue}-here." in told
    assert unescape(re.search(r'class="button" href="([^"]+)">Go back', question.text)[1]) == (
        f"/ui/failures?queue={queue}-here"
    )
    http.post("/ui/jobs", data={**fields_of(question), "confirmed": "yes"})
    assert [api.get(f"jobs/{job}")["state"] for job in there] == ["failed"] * 3
    wait_until(lambda: all(api.get(f"jobs/{job}")["state"] == "ready" for job in here))
    jobs = [to for to in links(page, "2") if to.startswith("/ui/jobs?")]
    assert jobs
    assert all(f"{queue}-here" in to for to in jobs)


def test_a_question_about_failures_names_their_queues_with_numbers(http, api, queue):
    fail(api, f"{queue}-a", 1, code="Both", message=queue, retry=False)
    fail(api, f"{queue}-b", 2, code="Both", message=queue, retry=False)
    (row,) = [row for row in api.get("failures?count=1000") if row["code"] == "Both"]

    told = text_of(
        send(http, "jobs", action="cancel", all="yes", q=f"state:failed failure:{row['group']}")
    )

    assert "Cancel 3 jobs?" in told
    assert f"Queues: {queue}-b (2), {queue}-a (1)." in told


def test_a_completed_job_is_not_run_again_by_one_click(http, api, filled):
    job_id = filled["completed"]
    page = http.get(f"/ui/job/{job_id}").text
    assert "Run again…" in page
    assert "button primary" not in page

    question = send(http, f"job/{job_id}", action="retry")

    assert f"Run job {job_id} again?" in text_of(question)
    assert "done a second time" in text_of(question)
    assert api.get(f"jobs/{job_id}")["state"] == "completed"
    asked = send(http, f"job/{job_id}", action="move", queue="elsewhere")
    assert f"Run job {job_id} again in queue elsewhere?" in text_of(asked)
    assert api.get(f"jobs/{job_id}")["state"] == "completed"


def test_jobs_that_fail_and_are_retried_are_seen_as_failures(http, api, queue):
    ids = fail(api, queue, 6, code="error", message=TRACE, delay_ms=3_600_000)
    api.results("submit", queue=queue, payload=1, delay_ms=3_600_000)

    assert "attempts fail" in attention(http, queue)
    notes = attention(http, "6 of 6 attempts failed in 5 min")
    assert links(notes, queue) == [f"/ui/queue?name={queue}&tab=retrying"]
    tab = http.get("/ui/queue", params={"name": queue, "tab": "retrying"})
    assert set(re.findall(r'<tr id="j-(\w+)">', tab.text)) == set(ids)
    assert "error: DBDown: connection refused · retry in" in text_of(tab)
    found = http.get("/ui/jobs", params={"q": f"is:retrying queue:{queue}"})
    assert set(re.findall(r'<tr id="j-(\w+)">', found.text)) == set(ids)
    assert re.search(r"retrying\s+6", text_of(found))
    assert re.search(r"\d+ after a failure", text_of(http.get("/ui/")))
    failures = text_of(http.get("/ui/failures", params={"queue": queue}))
    assert "6 being retried, 0 failed, in 1 group" in failures
    assert "DBDown: connection refused" in failures
    (row,) = api.get(f"failures?queue={queue}")
    assert (row["count"], row["retrying"], row["message"]) == (0, 6, "DBDown: connection refused")
    assert api.get(f"queues/{queue}")["retrying"] == 6
    metrics = api.http.get("/metrics").text
    assert f'manyhands_queue_retrying_jobs{{queue="{queue}"}} 6.0' in metrics


def test_a_group_counts_both_kinds_and_shows_where_its_error_was_raised(http, api, queue):
    why = {"code": queue, "message": TRACE}
    fail(api, queue, 2, **why, delay_ms=3_600_000)
    fail(api, queue, 1, **why, retry=False)
    (row,) = api.get(f"failures?queue={queue}")

    page = text_of(http.get(f"/ui/failures/{row['group']}"))

    assert (row["count"], row["retrying"]) == (1, 2)
    assert "2 being retried, 1 failed" in page
    assert "/srv/app/charge.py:12 in charge" in page
    assert "Being retried" in page


def test_the_page_of_a_retried_job_says_why_its_last_attempt_failed(http, api, queue):
    (job_id,) = fail(api, queue, 1, code="error", message=TRACE, delay_ms=3_600_000)

    page = text_of(http.get(f"/ui/job/{job_id}"))

    assert "The last attempt failed: error: DBDown: connection refused" in page
    assert "/srv/app/charge.py:12 in charge" in page
    assert "Traceback (most recent call last)" in page


def test_a_failure_without_a_code_is_named_by_its_line(http, api, queue):
    job_id = fail(api, queue, 20, code="", message="the box is empty", retry=False)[0]

    page = http.get("/ui/failures", params={"queue": queue})

    (to,) = links(page.text, "the box is empty")
    assert to.startswith("/ui/failures/")
    assert "the box is empty" in text_of(http.get(to))
    assert ": the box is empty" not in text_of(http.get(f"/ui/job/{job_id}"))
    assert ": the box is empty" not in attention(http, "the box is empty")


def test_failures_are_not_said_to_have_begun_before_they_did(http, api, queue):
    fail(api, queue, 30, code=queue, message="late", retry=False)

    notes = attention(http, queue)

    (note,) = [note for note in notes.split("<li ") if f"{queue}: late" in note]
    assert re.search(rf"30 jobs of {queue} in the last \d+ (s|m|ms)\b", note)
    assert "UTC" not in note


@pytest.mark.parametrize("tab", ["failed", "ready"])
def test_a_tab_offers_what_fits_all_of_its_jobs(http, api, queue, tab):
    if tab == "failed":
        fail(api, queue, 3, code="x", message="y", retry=False)
    else:
        api.results("submit", items=[{"queue": queue, "payload": 1}] * 3)
    page = http.get("/ui/queue", params={"name": queue, "tab": tab}).text
    offered = [form for form in forms(page) if form.get("all") == "yes"]

    assert [form["action"] for form in offered] == (
        ["retry", "cancel"] if tab == "failed" else ["cancel"]
    )
    asked = send(http, "jobs", **{k: v for k, v in offered[0].items() if k != "csrf"})
    assert re.search(r"(Retry|Cancel) 3 jobs\?", text_of(asked))


def test_jobs_are_found_by_what_lists_and_logs_show_of_their_ids(http, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    finished = fail(api, f"{queue}-failed", 1, code="x", message="y", retry=False)[0]

    def found(words: str) -> list[str]:
        page = http.get("/ui/jobs", params={"q": words, "patient": "1"}).text
        return re.findall(r'<tr id="j-(\w+)">', page)

    dashed = "-".join((job_id[:8], job_id[8:12], job_id[12:16], job_id[16:20], job_id[20:]))
    for written in (job_id, job_id.upper(), dashed, f"H:vm:{job_id}", job_id[-12:], job_id[-8:]):
        assert job_id in found(written), written
    assert finished in found(finished)
    assert finished in found(finished[-12:])


def test_a_text_is_found_in_failures_and_names_and_the_page_says_so(http, api, queue):
    (job_id,) = fail(api, queue, 1, code="x", message=f"needle-{queue}", retry=False)

    page = http.get("/ui/jobs", params={"q": f"needle-{queue}", "patient": "1"})
    nothing = text_of(http.get("/ui/jobs", params={"q": f"hay-{queue}", "patient": "1"}))

    assert f'id="j-{job_id}"' in page.text
    assert "payloads, names and failures" in nothing


def test_what_was_sent_with_a_failure_comes_back_as_it_was(api, queue):
    for value in ({"a": 1}, "plain", ["x", 2.5]):
        (job_id,) = fail(api, queue, 1, code="x", message="y", payload=value, retry=False)
        failure = api.get(f"jobs/{job_id}")["failure"]
        assert failure["payload"] == value
        assert failure["encoding"] == "json"


def test_jobs_that_are_retried_can_be_cancelled_together_and_listed_from_their_group(http, api):
    queue = "gives-up-trying"
    fail(api, queue, 3, code="Wobbly", message=queue, delay_ms=3_600_000)

    tab = http.get("/ui/queue", params={"name": queue, "tab": "retrying"})
    (cancel,) = [form for form in forms(tab.text) if form.get("action") == "cancel"]
    question = send(http, "jobs", **{k: v for k, v in cancel.items() if k != "csrf"})
    failures = http.get("/ui/failures", params={"queue": queue}).text

    assert "Cancel all 3" in text_of(tab)
    assert "Cancel 3 jobs?" in text_of(question)
    (listed,) = [to for to in links(failures, "3") if to.endswith("#retried")]
    assert text_of(http.get(listed)).count("Wobbly: gives-up-trying · retry in") == 3


def test_the_end_of_a_lease_and_the_last_error_are_two_words_apart(http, api):
    queue = "fails-and-runs"
    (job,) = fail(api, queue, 1, code="Wobbly", message=queue, delay_ms=0)
    wait_until(lambda: api.get(f"jobs/{job}")["state"] == "ready")
    api.results("claim", queue=queue, worker="w", term_ms=3_600_000)

    page = http.get("/ui/jobs", params={"q": f"queue:{queue} state:running"}).text

    assert '</span> <span class="bad" title="after Wobbly: fails-and-runs">after Wobbly' in page


def test_what_is_being_retried_is_not_offered_to_be_retried(http, api):
    queue = "tries-by-itself"
    fail(api, queue, 1, code="Wobbly", message=queue, delay_ms=3_600_000)

    page = http.get("/ui/jobs", params={"q": f"is:retrying queue:{queue}"}).text

    assert re.findall(r'<option value="(retry|cancel|move|priority)"', page) == [
        "cancel",
        "move",
        "priority",
    ]
