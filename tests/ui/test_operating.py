"""What an operator reads at night must be true, and must lead to what it speaks of."""

import re
from html import unescape

import httpx

from tests.e2e.serving import Api, serving, wait_until
from tests.ui.sample import HOSTILE
from tests.ui.test_jobs_requests import send, text_of


def links(page: str, words: str) -> list[str]:
    """Where the links with these words lead to."""
    found = re.findall(r'<a [^>]*href="([^"]+)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return [unescape(to) for to, inner in found if words in unescape(inner)]


def attention(http: httpx.Client, words: str) -> str:
    """What needs attention, once it speaks of something: failures are counted now and then."""

    def notes() -> str | None:
        found = re.search(r'<ul class="notes">.*?</ul>', http.get("/ui/").text, re.DOTALL)
        return found[0] if found is not None and words in unescape(found[0]) else None

    return wait_until(notes)


def test_a_failing_group_is_named_by_its_code_and_leads_to_its_page(http):
    notes = attention(http, "Timeout: no answer")

    (to,) = links(notes, "Timeout: no answer")

    assert "Grouped by" in text_of(http.get(to))


def test_many_of_a_kind_are_told_by_their_number_so_that_others_are_seen(http, api, queue):
    for number in range(6):
        name = f"{queue}-{number}"
        api.results("submit", queue=name, payload=1)
        api.http.put(f"/api/queues/{name}", json={"policy": {}, "paused": True})
    notes = attention(http, queue)

    assert len(links(notes, queue)) == 3
    (rest,) = [note for note in notes.split("<li ") if "paused" in note and "3 more" in note]
    assert links(rest, "3 more") == ["/ui/queues?sort=ready"]
    assert attention(http, "Timeout")


def test_a_queue_of_any_name_can_be_searched_from_its_page(http, filled):
    page = http.get("/ui/queue", params={"name": HOSTILE, "tab": "ready"})

    (to,) = links(page.text, "Search in these")

    assert f'id="j-{filled["hostile"]}"' in http.get(to).text


def test_why_a_job_waits_is_told_with_names_as_all_pages_show_them(http, filled):
    told = text_of(http.get(f"/ui/job/{filled['hostile']}"))

    assert "⟨U+202E⟩gnp.exe⟨U+202C⟩”: no worker holds a job of it" in told
    assert "\\u202e" not in told


def test_a_delayed_job_says_when_it_is_due(http, filled):
    told = text_of(http.get(f"/ui/job/{filled['delayed']}"))

    assert re.search(r"Why it waits It is due in \d+ m", told)


def test_who_cancels_a_job_hears_how_many_wait_for_it_also_indirectly(http, api, queue):
    first = api.results("submit", queue=queue, payload=1)["id"]
    second = api.results("submit", queue=queue, payload=2, depends_on=[first])["id"]
    third = api.results("submit", queue=queue, payload=3, depends_on=[second])["id"]

    assert "2 jobs that depend on it are cancelled" in text_of(
        send(http, f"job/{first}", action="cancel")
    )
    assert "1 job that depends on it is cancelled" in text_of(
        send(http, f"job/{second}", action="cancel")
    )
    assert "cancelled too" not in text_of(send(http, f"job/{third}", action="cancel"))
    chosen = send(http, "jobs", action="cancel", job=[first, second])
    assert "1 job that depends on one of them is cancelled" in text_of(chosen)


def test_a_mistake_in_an_operation_leaves_the_search_and_the_choice_as_they_were(http, api, queue):
    ids = [api.results("submit", queue=queue, payload=number)["id"] for number in range(3)]
    back = f"/ui/jobs?q=queue:{queue}&order=oldest"

    page = send(http, "jobs", back=back, q=f"queue:{queue}", action="move", job=ids[:2]).text

    assert re.findall(r'<tr id="j-(\w+)">', page) == ids
    assert re.findall(r'id="pick-(\w+)" checked', page) == ids[:2]
    assert '<option value="move" selected>' in page
    assert f'name="q" value="queue:{queue}"' in page
    assert unescape(re.search(r'name="back" value="(/ui/jobs[^"]+)"', page)[1]) == back
    assert "Name the queue" in page


def test_workers_that_have_held_a_job_for_the_longest_stand_first(http, api, queue):
    for number, term_ms in ((10, 1_000_000), (9, 3_000_000), (11, 2_000_000)):
        api.results("submit", queue=queue, payload=number)
        worker = f"in-order-{number}"
        api.results("claim", queue=queue, worker=worker, count=1, term_ms=term_ms)

    page = http.get("/ui/workers", params={"q": "in-order"}).text

    assert re.findall(r"<bdi>in-order-(\d+)</bdi>", page) == ["10", "9", "11"]
    assert "Holding for" in page
    assert "Last sign" in page


def follow(http: httpx.Client, address: str, pattern: str) -> list[str]:
    """What a pattern finds on all pages of a list."""
    found: list[str] = []
    for _ in range(20):
        page = http.get(address).text
        found += re.findall(pattern, page)
        more = re.search(r'rel="next" href="([^"]+)"', page)
        if more is None:
            return found
        address = unescape(more[1])
    raise AssertionError("there is no last page")


def test_workers_beyond_the_first_page_are_on_the_pages_after_it(http, api, queue):
    api.results("submit", items=[{"queue": queue, "payload": 1}] * 101)
    for number in range(101):
        api.results("claim", queue=queue, worker=f"one-of-many-{number}", term_ms=1_000_000)

    found = follow(http, "/ui/workers?q=one-of-many", r"<bdi>one-of-many-(\d+)</bdi>")

    assert sorted(found, key=int) == [str(number) for number in range(101)]
    assert "51 to 100 of 101" in text_of(http.get("/ui/workers?q=one-of-many&page=2"))


def test_limits_beyond_the_first_page_are_on_the_pages_after_it(http, api):
    for number in range(101):
        limit = {"concurrency_max": 1}
        api.http.put(f"/api/limits/one-of-many-{number:03}", json=limit).raise_for_status()

    found = follow(http, "/ui/limits", r'name="name" value="one-of-many-(\d+)"')

    assert found == [f"{number:03}" for number in range(101)]
    beyond = http.get("/ui/limits?page=99").text
    assert '<a href="/ui/limits" aria-current="page">' in beyond
    assert "one-of-many-100" in beyond
    again = send(http, "limits?page=2", action="set", name="", max="1")
    assert "A limit needs a name" in again.text


def test_a_page_without_anything_names_only_listeners_that_are_there(tmp_path):
    with serving(tmp_path, "--gearman", "127.0.0.1:0") as server:
        port = server.addresses["gearman"].rpartition(":")[2]
        client = Api(server)
        for page in ("", "queues", "jobs"):
            with_gearman = unescape(client.http.get(f"/ui/{page}").text)
            assert f"gearman -p {port} -b -f" in with_gearman
            assert f"{server.url}/api/submit" in with_gearman
        assert f"gearman -p {port} -w" in client.http.get("/ui/workers").text
        client.close()


def test_a_page_without_anything_leaves_out_a_listener_that_is_off(tmp_path):
    with serving(tmp_path) as server:
        client = Api(server)
        for page in ("", "queues", "jobs", "workers"):
            text = client.http.get(f"/ui/{page}").text
            assert "<pre" in text
            assert "gearman -" not in text
        client.close()


def test_charts_and_their_numbers_say_when_the_server_started(http, api):
    api.results("submit", queue="charted", payload=1)
    started = api.get("about")["started_at"]

    page = http.get("/ui/").text

    marks = {int(mark) for mark in re.findall(r'data-started="(\d+)"', page)}
    assert marks == {started // 1000}
    assert page.count("server started") == page.count('class="plot"')


def test_the_settings_of_a_queue_say_what_a_bound_would_meet(http, api):
    api.results("submit", items=[{"queue": "bound-to-be", "payload": n} for n in range(3)])
    api.results("claim", queue="bound-to-be", worker="w", term_ms=3_600_000)

    page = text_of(http.get("/ui/queue", params={"name": "bound-to-be", "tab": "settings"}))

    assert "maximum number of running jobs; 1 now" in page
    assert "a submit above this is refused; 3 now" in page
