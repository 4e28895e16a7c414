"""Workers: which one hangs, what it holds, and how its jobs are taken back."""

import re
from html import unescape

import httpx
import pytest
import zmq

from manyhands.protocols.dwork.codec import Kind, Query, encode
from manyhands.protocols.gearman import codec as wire
from tests.e2e.dwork_talk import Talk, a_task
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import serving, wait_until
from tests.ui.test_jobs_requests import fields_of, send, text_of
from tests.ui.test_operating import links


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served"), "--gearman", "127.0.0.1:0") as server:
        yield server


def row_of(http, name: str) -> str:
    page = http.get("/ui/workers", params={"q": name}).text
    found = [row for row in re.findall(r"<tr id=.*?</tr>", page, re.DOTALL) if name in row]
    assert len(found) == 1, found
    return found[0]


def test_a_worker_has_a_page_with_its_jobs_now_and_before(http, api, queue):
    api.results("submit", items=[{"queue": queue, "payload": n} for n in range(2)])
    first, second = api.results("claim", queue=queue, worker="pager", count=2, term_ms=3_600_000)
    api.results("complete", id=first["id"], token=first["token"])
    (to,) = links(row_of(http, "pager"), "pager")

    page = http.get(to)

    assert f'id="j-{second["id"]}"' in page.text.partition("Jobs it had before")[0]
    assert f'id="j-{first["id"]}"' in page.text.partition("Jobs it had before")[2]
    assert "2 taken, 1 completed" in text_of(page)


def test_a_worker_that_holds_a_job_for_longer_than_usual_is_marked(http, api, queue):
    api.results("submit", items=[{"queue": queue, "payload": n} for n in range(31)])
    quick = api.results("claim", queue=queue, worker="quick", count=30, term_ms=3_600_000)
    for job in quick:
        api.results("complete", id=job["id"], token=job["token"])
    api.results("claim", queue=queue, worker="hangs", count=1, term_ms=3_600_000)

    def marked() -> bool:
        return "99 of 100 attempts" in row_of(http, "hangs")

    wait_until(marked)


def test_the_jobs_of_a_gearman_worker_are_released_from_the_list(http, api, served, queue):
    job_id = api.results("submit", queue=queue, payload="x")["id"]
    with GearmanTalk(served) as worker:
        worker.put(wire.SET_CLIENT_ID, b"gear-hangs")
        worker.can_do(queue.encode())
        worker.grab()
        row = row_of(http, "gear-hangs")
        assert "Release…" in row
        fields = dict(re.findall(r'name="(realm|worker|connection|action)" value="([^"]*)"', row))

        question = send(http, "workers", **fields)
        assert "Release 1 job of worker gear-hangs?" in text_of(question)
        http.post("/ui/workers", data={**fields_of(question), "confirmed": "yes"})

        assert api.get(f"jobs/{job_id}")["state"] == "ready"


def test_an_idle_gearman_worker_is_listed_with_what_it_waits_for(http, served, queue):
    with GearmanTalk(served) as worker:
        worker.put(wire.SET_CLIENT_ID, b"gear-idle")
        worker.put(wire.CAN_DO, queue.encode())
        worker.put(wire.PRE_SLEEP)

        wait_until(lambda: "gear-idle" in http.get("/ui/workers").text)
        row = row_of(http, "gear-idle")

        assert "waits for" in row
        assert queue[:10] in row


def test_a_worker_that_is_idle_is_listed_with_the_queue_of_its_last_job(http, api, queue):
    api.results("submit", queue=queue, payload="x")
    [job] = api.results("claim", queue=queue, worker="between-polls", count=1)
    api.results("complete", id=job["id"], token=job["token"])

    row = row_of(http, "between-polls")

    assert "The queue it last took a job from" in row
    assert queue[:10] in row


def test_a_dwork_worker_that_waits_is_listed_with_its_queue(tmp_path):
    with (
        serving(tmp_path, "--dwork", "127.0.0.1:0") as served,
        httpx.Client(base_url=served.url) as http,
        Talk(served) as talk,
        Talk(served, kind=zmq.DEALER) as waiting,
    ):
        talk.create(a_task("first"), a_task("second", "first"))
        talk.steal("node-1")

        # The hold ends after a second: as long as nothing is seen, it asks again.
        def waits() -> bool:
            waiting.socket.send_multipart([b"", encode(Query(kind=Kind.STEAL, location="node-9"))])
            return "waits for" in http.get("/ui/workers?q=node-9").text

        wait_until(waits)


def test_a_job_and_its_row_lead_to_the_worker_that_has_it(http, api, queue):
    api.results("submit", queue=queue, payload=1)
    [taken] = api.results("claim", queue=queue, worker="w & co", term_ms=3_600_000)
    to = "/ui/worker?realm=native&name=w+%26+co&address=127.0.0.1"

    job, row = (
        unescape(http.get(path, params=params).text)
        for path, params in ((f"/ui/job/{taken['id']}", {}), ("/ui/jobs", {"q": f"queue:{queue}"}))
    )

    assert f'<a href="{to}">Look at the worker</a>' in job
    assert f'href="{to}"' in row
    assert "w & co" in text_of(http.get(to))
