"""Jobs, a job, failures and events as plain requests see them: what is found, shown and done."""

import json
import re
import time
from html import unescape

import httpx
import pytest

from tests.e2e.serving import SECONDS_MAX, wait_until
from tests.ui.sample import HOSTILE
from tests.ui.test_requests import Elements

PAGES = ["jobs", "jobs?q=state:failed", "failures", "events", "events?topic=failed.%23"]


def text_of(answer: httpx.Response) -> str:
    """What stands on a page, without its tags."""
    assert answer.status_code == 200, answer.text
    main = answer.text.partition('<main id="main"')[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def searched(http: httpx.Client, query: str, **more) -> str:
    """The page of a search. On a busy machine a page may tell that it did not come to the end."""

    def looked_through() -> str:
        answer = http.get("/ui/jobs", params={"q": query, "patient": 1, **more})
        assert answer.status_code == 200
        unfinished = 'id="further"' in answer.text or "+</span>" in answer.text
        return "" if unfinished else answer.text

    return wait_until(looked_through)


def listed(http: httpx.Client, query: str, **more) -> list[str]:
    return re.findall(r'<tr id="j-(\w+)">', searched(http, query, **more))


def send(http: httpx.Client, page: str, **fields) -> httpx.Response:
    proof = re.search(r'name="csrf" value="([^"]+)"', http.get("/ui/jobs").text)[1]
    return http.post(f"/ui/{page}", data={"csrf": proof, **fields})


def fields_of(answer: httpx.Response) -> dict[str, list[str]]:
    """The hidden fields of a question, to be sent again."""
    found: dict[str, list[str]] = {}
    form = re.search(r'<form class="card confirm".*?</form>', answer.text, re.DOTALL)[0]
    for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form):
        found.setdefault(name, []).append(unescape(value))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_script_or_style_of_its_own(http, page):
    answer = http.get(f"/ui/{page}")

    assert answer.status_code == 200
    for tag, attributes in Elements(answer.text).found:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or "src" in attributes


@pytest.mark.parametrize("page", PAGES)
def test_a_refresh_gets_the_main_block_alone(http, page):
    answer = http.get(f"/ui/{page}", headers={"hx-request": "true"})

    assert "<h1>" in answer.text
    assert "<html" not in answer.text


# Searching.


def test_jobs_are_found_by_every_qualifier(http, filled):
    assert listed(http, "state:failed") == [filled["failed"]]
    assert listed(http, "tag:news") == [filled["tagged"]]
    assert listed(http, "task:resize") == [filled["tagged"]]
    assert listed(http, "queue:mail state:delayed") == [filled["delayed"]]
    assert listed(http, "worker:worker-1 state:completed") == [filled["completed"]]
    assert listed(http, f"id:{filled['binary']}") == [filled["binary"]]
    assert listed(http, '"plain text"') == [filled["tagged"]]
    assert listed(http, "protocol:gearman") == []
    assert listed(http, "age>1h") == []
    assert len(listed(http, "age<1h protocol:native")) == 11
    assert listed(http, "queue:" + json.dumps(HOSTILE, ensure_ascii=False)) == [filled["hostile"]]


def test_the_counts_follow_the_search_and_not_its_state(http):
    def counts(query: str) -> dict[str, str]:
        page = searched(http, query)
        tabs = re.search(r'<nav class="tabs states".*?</nav>', page, re.DOTALL)[0]
        return dict(re.findall(r'(?:</svg>|">)(\w+) <span class="count">([^<]+)</span>', tabs))

    assert counts("worker:worker-1")["all"] == "4"
    assert counts("worker:worker-1 state:failed") == counts("worker:worker-1")
    assert counts("queue:mail")["ready"] == "3"
    assert counts("tag:news") | {"all": "1", "ready": "1"} == counts("tag:news")


def test_a_broken_search_gets_a_sentence_under_the_field_and_finds_nothing(http):
    answer = http.get("/ui/jobs", params={"q": "sate:failed"})

    assert "There is no qualifier “sate”" in text_of(answer)
    assert "<table" not in answer.text
    assert 'aria-describedby="d-q"' in answer.text


def test_pages_go_on_where_the_one_before_ended(http, api, queue):
    ids = [api.results("submit", queue=queue, payload=number)["id"] for number in range(120)]
    seen: list[str] = []
    address = httpx.URL("/ui/jobs", params={"q": f"queue:{queue}"})
    for _ in range(10):
        page = http.get(address).text
        seen += re.findall(r'<tr id="j-(\w+)">', page)
        more = re.search(r'rel="next" href="([^"]+)"', page)
        if more is None:
            break
        address = unescape(more[1])

    assert seen == ids[::-1]
    assert listed(http, f"queue:{queue}", order="oldest") == ids[:50]


def test_the_count_of_the_first_page_is_the_whole(http, api, queue):
    for number in range(60):
        api.results("submit", queue=queue, payload=number)

    assert "50 jobs of 60" in text_of(http.get("/ui/jobs", params={"q": f"queue:{queue}"}))


# Operations on many jobs.


def ended(http: httpx.Client, place: str) -> str:
    """The page of an operation, once it has ended."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        page = text_of(http.get(place))
        if " running " not in page:
            return page
        assert time.monotonic() < deadline, page
        time.sleep(0.02)


def test_chosen_jobs_are_cancelled_after_a_question_with_their_number(http, api, queue):
    ids = [api.results("submit", queue=queue, payload=number)["id"] for number in range(5)]

    asked = send(http, "jobs", action="cancel", job=ids[:2], q=f"queue:{queue}")
    assert "Cancel 2 jobs?" in text_of(asked)
    assert api.get(f"queues/{queue}")["counts"]["cancelled"] == 0
    done = http.post("/ui/jobs", data=fields_of(asked))

    assert done.status_code == 303
    page = ended(http, done.headers["location"])
    assert "Cancelled 2 " in page
    assert [api.get(f"jobs/{job_id}")["state"] for job_id in ids] == [
        *["cancelled"] * 2,
        *["ready"] * 3,
    ]


def test_all_that_match_are_moved_and_what_comes_later_is_not(http, api, queue):
    ids = [api.results("submit", queue=queue, payload="move me")["id"] for _ in range(70)]
    other = api.results("submit", queue=queue, payload="not me")["id"]

    asked = send(
        http,
        "jobs",
        action="move",
        all="yes",
        to_queue=f"{queue}-2",
        q=f'queue:{queue} "move me"',
    )
    assert f"Move 70 jobs to queue {queue}-2?" in text_of(asked)
    done = http.post("/ui/jobs", data=fields_of(asked))

    ended(http, done.headers["location"])
    assert {api.get(f"jobs/{job_id}")["queue"] for job_id in ids} == {f"{queue}-2"}
    assert api.get(f"jobs/{other}")["queue"] == queue


def test_priorities_are_set_on_a_whole_search(http, api, queue):
    ids = [api.results("submit", queue=queue, payload=number)["id"] for number in range(3)]

    asked = send(http, "jobs", action="priority", all="yes", priority="7.5", q=f"queue:{queue}")
    done = http.post("/ui/jobs", data=fields_of(asked))

    ended(http, done.headers["location"])
    assert [api.get(f"jobs/{job_id}")["priority"] for job_id in ids] == [7.5] * 3


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"action": "cancel"}, "Choose some jobs first"),
        ({"action": "move", "all": "yes", "q": "queue:mail"}, "Name the queue"),
        ({"action": "priority", "all": "yes", "priority": "high"}, "A priority is a number"),
        ({"action": "priority", "all": "yes", "priority": "nan"}, "A priority is a number"),
        ({"action": "retry", "all": "yes", "q": "state:ready"}, "Retry is for jobs that are"),
        ({"action": "cancel", "all": "yes", "q": "sate:ready"}, "no qualifier"),
    ],
)
def test_a_mistake_in_an_operation_is_told_and_nothing_is_done(http, api, fields, told):
    before = api.get("bulk")
    answer = send(http, "jobs", **fields, confirmed="yes")

    assert told in text_of(answer) or told in answer.text
    assert api.get("bulk") == before


def test_an_unknown_operation_is_refused(http):
    assert send(http, "jobs", action="explode", all="yes").status_code == 400
    assert http.get("/ui/bulk/nothing").status_code == 404
    assert http.get("/ui/jobs/nothing").status_code == 404


# One job.


def test_a_job_is_found_by_every_name_it_has(http, filled):
    job_id = filled["ready"]
    dashed = f"{job_id[:8]}-{job_id[8:12]}-{job_id[12:16]}-{job_id[16:20]}-{job_id[20:]}"

    for name in (job_id, job_id.upper(), dashed, f"H:server:{job_id}"):
        assert job_id in text_of(http.get(f"/ui/job/{name}"))
    for name in ("", "nothing", "%00", "f" * 300, "..%2F..%2Fabout"):
        answer = http.get(f"/ui/job/{name}")
        assert answer.status_code == 404
        assert "there is no job" in answer.text.lower()


def test_big_numbers_are_shown_to_the_last_digit(http, filled):
    assert "12345678901234567890" in text_of(http.get(f"/ui/job/{filled['ready']}"))


def test_a_job_says_why_it_waits(http, api, filled, queue):
    assert "It is due in" in text_of(http.get(f"/ui/job/{filled['delayed']}"))
    blocked = text_of(http.get(f"/ui/job/{filled['blocked']}"))
    assert "It waits for another job to complete" in blocked
    assert filled["delayed"][-12:] in blocked
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    assert "Nobody is known to work on queue" in text_of(http.get(f"/ui/job/{job_id}"))
    api.http.put(f"/api/queues/{queue}", json={"paused": True})
    assert "is paused" in text_of(http.get(f"/ui/job/{job_id}"))
    leased = text_of(http.get(f"/ui/job/{filled['leased']}"))
    assert "“worker-1” works on it" in leased
    assert "1 of 4" in leased


def test_the_api_says_why_a_job_waits_too(api, filled):
    [reason] = api.get(f"jobs/{filled['blocked']}")["waits"]
    assert (reason["what"], reason["ids"]) == ("blocked", [filled["delayed"]])
    assert api.get(f"jobs/{filled['completed']}")["waits"] == []


def test_a_failed_job_shows_its_whole_message(http, filled):
    page = text_of(http.get(f"/ui/job/{filled['failed']}"))

    assert "Why it failed" in page
    assert "no answer at line 7" in page


def test_hostile_names_and_payloads_are_text(http, filled):
    for place in (f"job/{filled['hostile']}", "jobs", "events"):
        page = http.get(f"/ui/{place}").text
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "<b>tag" not in page
    shown = text_of(http.get(f"/ui/job/{filled['hostile']}"))
    assert "<script>alert(1)</script>" in shown
    assert "⟨U+202E⟩gnp.exe" in shown


def test_bytes_are_shown_in_each_view_and_downloaded_whole(http, api, queue):
    data = bytes(range(256)) * 100
    import base64

    encoded = base64.b64encode(data).decode()
    job_id = api.results("submit", queue=queue, payload={"base64": encoded}, encoding="binary")[
        "id"
    ]

    page = http.get(f"/ui/job/{job_id}").text
    assert "00000000  00 01 02 03" in page
    assert "Download the whole" in page
    file = http.get(f"/ui/job/{job_id}/payload")
    assert file.content == data
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"] == f'attachment; filename="{job_id}-payload.bin"'
    assert file.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in file.headers["content-security-policy"]
    for missing in ("result", "failure", "partials/1", "partials", "payload/1", "nothing"):
        assert http.get(f"/ui/job/{job_id}/{missing}").status_code == 404


def test_a_megabyte_of_json_is_cut_with_a_way_to_the_whole(http, api, queue):
    payload = [{"number": number, "text": "x" * 60} for number in range(12_000)]
    job_id = api.results("submit", queue=queue, payload=payload)["id"]

    page = http.get(f"/ui/job/{job_id}")
    assert len(page.content) < 150_000
    assert "12,000 items" in page.text
    assert "more, in the whole" in page.text
    as_text = http.get(f"/ui/job/{job_id}?payload=text").text
    assert "The first 32.0 KiB" in as_text
    assert http.get(f"/ui/job/{job_id}/payload").json() == payload


def test_partial_results_and_warnings_are_listed(http, api, queue):
    api.results("submit", queue=queue, payload=1)
    [job] = api.results("claim", queue=queue, worker="w")
    proof = {"id": job["id"], "token": job["token"]}
    api.results("partial", **proof, payload="first <b>piece", encoding="text")
    api.results("partial", **proof, payload="x" * 5000, encoding="text", warning=True)

    page = http.get(f"/ui/job/{job['id']}").text
    assert "first &lt;b&gt;piece" in page
    assert "warning" in page
    assert http.get(f"/ui/job/{job['id']}/partials/2").content == b"x" * 5000


def test_a_job_is_retried_moved_tagged_and_cancelled_from_its_page(http, api, queue):
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    place = f"job/{job_id}"

    assert send(http, place, action="priority", priority="3").status_code == 303
    assert send(http, place, action="tag", tag="a tag").status_code == 303
    assert send(http, place, action="move", queue=f"{queue}-2").status_code == 303
    shown = api.get(f"jobs/{job_id}")
    assert (shown["priority"], shown["tags"], shown["queue"]) == (3, ["a tag"], f"{queue}-2")
    send(http, place, action="untag", tag="a tag")
    assert api.get(f"jobs/{job_id}")["tags"] == []
    asked = send(http, place, action="cancel")
    assert f"Cancel job {job_id}" in text_of(asked)
    assert api.get(f"jobs/{job_id}")["state"] == "ready"
    http.post(f"/ui/{place}", data=fields_of(asked))
    assert api.get(f"jobs/{job_id}")["state"] == "cancelled"
    send(http, place, action="retry")
    assert api.get(f"jobs/{job_id}")["state"] == "ready"


def test_a_delayed_job_is_run_now_and_a_lease_is_ended(http, api, queue):
    job_id = api.results("submit", queue=queue, payload=1, delay_ms=3_600_000)["id"]
    send(http, f"job/{job_id}", action="run_now")
    assert api.get(f"jobs/{job_id}")["state"] == "ready"
    api.results("claim", queue=queue, worker="w")
    send(http, f"job/{job_id}", action="expire")
    assert api.get(f"jobs/{job_id}")["state"] != "leased"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"action": "priority", "priority": "much"}, "A priority is a number"),
        ({"action": "priority", "priority": "inf"}, "A priority is a number"),
        ({"action": "move", "queue": ""}, "Enter the name of a queue"),
        ({"action": "tag", "tag": " "}, "Enter a tag"),
    ],
)
def test_a_mistake_stands_under_its_field(http, filled, fields, told):
    answer = send(http, f"job/{filled['ready']}", **fields)

    assert told in text_of(answer)
    assert 'aria-invalid="true"' in answer.text


def test_what_the_engine_refuses_is_told(http, filled):
    answer = send(http, f"job/{filled['ready']}", action="retry")

    assert answer.status_code == 303
    assert "Refused: job" in text_of(http.get(f"/ui/job/{filled['ready']}"))
    assert send(http, f"job/{filled['ready']}", action="explode").status_code == 400


# Failures and events.


def fail(api, queue: str, code: str, message: str) -> str:
    job_id = api.results("submit", queue=queue, payload=1)["id"]
    [job] = api.results("claim", queue=queue, worker="w")
    why = {"code": code, "message": message, "retry": False}
    api.results("fail", id=job["id"], token=job["token"], **why)
    return job_id


def test_failures_are_grouped_and_a_group_is_retried_together(http, api, queue):
    ids = [fail(api, queue, "Broken", f"row {number} is <i>bad</i>") for number in range(3)]
    other = fail(api, queue, "Other", "something else")

    page = http.get("/ui/failures", params={"queue": queue}).text
    assert "row &lt;number&gt; is &lt;i&gt;bad" in page
    group = re.search(r'id="g-(\w+)".*?Broken', page, re.DOTALL)[1]
    shown = text_of(http.get(f"/ui/failures/{group}"))
    assert "The latest message row 2 is <i>bad</i>" in shown
    assert sorted(listed(http, f"failure:{group}")) == sorted(ids)
    asked = send(http, "jobs", action="retry", all="yes", q=f"state:failed failure:{group}")
    assert "Retry 3 jobs?" in text_of(asked)
    done = http.post("/ui/jobs", data=fields_of(asked))

    ended(http, done.headers["location"])
    assert [api.get(f"jobs/{job_id}")["state"] for job_id in ids] == ["ready"] * 3
    assert api.get(f"jobs/{other}")["state"] == "failed"
    assert http.get("/ui/failures/nothing").status_code == 404


def test_events_are_chosen_by_a_pattern(http, api, queue):
    job_id = api.results("submit", queue=f"{queue}.part", payload=1)["id"]
    api.results("cancel", ids=[job_id])

    def states(topic: str) -> list[str]:
        page = http.get("/ui/events", params={"topic": topic}).text
        return re.findall(r'<span class="badge state-(\w+)"', page)

    assert states(f"*.native.*.{queue}.part") == ["cancelled", "ready"]
    assert states(f"ready.#.{queue}.#") == ["ready"]
    assert states(f"*.*.{job_id}.#") == ["cancelled", "ready"]
    assert states("#.nowhere") == []


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("running.#", "A pattern begins with a state"),
        ("ready.smtp.#", "The second word is a protocol"),
        ("ready.native", "at least four words"),
        ("ready." * 200, "at most 500 characters"),
    ],
)
def test_a_broken_pattern_gets_a_sentence(http, topic, told):
    assert told in text_of(http.get("/ui/events", params={"topic": topic}))


def test_older_events_are_reached_by_links(http, api, queue):
    for number in range(150):
        api.results("submit", queue=queue, payload=number)
    first = http.get("/ui/events").text
    older = unescape(re.search(r'rel="next" href="([^"]+)"', first)[1])

    pages = (first, http.get(older).text)
    numbers = [int(n) for page in pages for n in re.findall(r'<tr id="e-(\d+)"', page)]
    assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
    assert len(numbers) > 150


def test_a_job_shows_its_headers(http, filled):
    """S3."""
    text = text_of(http.get(f"/ui/job/{filled['tagged']}"))

    assert "Header task resize" in text
    assert "Header <i>x</i> <i>y</i>" in text


def test_a_job_opened_from_a_search_leads_to_the_one_before_and_after_it(http, api, queue):
    jobs = api.results("submit", items=[{"queue": queue, "payload": n} for n in range(3)])
    first, second, third = (job["id"] for job in jobs)
    listed = http.get("/ui/jobs", params={"q": f"queue:{queue}"}).text
    to = unescape(re.search(rf'href="(/ui/job/{second}[^"]*)"', listed)[1])

    page = http.get(to).text
    newer = unescape(re.search(r'rel="prev" href="([^"]+)"', page)[1])
    older = unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])

    assert newer.startswith(f"/ui/job/{third}?")
    assert older.startswith(f"/ui/job/{first}?")
    assert 'rel="prev"' not in http.get(newer).text
    assert 'rel="next"' not in http.get(older).text
    assert 'class="steps"' not in http.get(f"/ui/job/{second}").text


def test_a_job_opened_from_the_tab_of_a_queue_leads_to_the_next_in_this_tab(http, api, queue):
    jobs = api.results("submit", items=[{"queue": queue, "payload": n} for n in range(2)])
    tab = http.get("/ui/queue", params={"name": queue, "tab": "ready"}).text
    to = unescape(re.search(rf'href="(/ui/job/{jobs[0]["id"]}[^"]*)"', tab)[1])

    page = http.get(to).text

    assert f'rel="next" href="/ui/job/{jobs[1]["id"]}?' in page


def test_chosen_jobs_of_a_queue_s_tab_are_retried_after_a_question(http, api, queue):
    api.results("submit", items=[{"queue": queue, "payload": number} for number in range(3)])
    failed = api.results("claim", queue=queue, worker="w", count=3, term_ms=60_000)
    for job in failed:
        api.results("fail", id=job["id"], token=job["token"], code="x", retry=False)
    tab = f"/ui/queue?name={queue}&tab=failed"
    form = re.search(r'<form class="bulk bar".*?</form>', http.get(tab).text, re.DOTALL)[0]
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    fields = {"q": hidden["q"], "back": unescape(hidden["back"]), "action": "retry"}
    chosen = [failed[0]["id"], failed[2]["id"]]

    mistake = send(http, "jobs", **fields)
    question = send(http, "jobs", **fields, job=chosen)
    http.post("/ui/jobs", data=fields_of(question))

    assert "Choose some jobs first" in text_of(mistake)
    assert f'value="queue:{queue} state:failed"' in unescape(mistake.text)
    assert "Retry 2 jobs?" in text_of(question)
    assert f'href="{tab}">Go back' in unescape(question.text)
    wait_until(lambda: all(api.get(f"jobs/{job_id}")["state"] == "ready" for job_id in chosen))
    assert api.get(f"jobs/{failed[1]['id']}")["state"] == "failed"
