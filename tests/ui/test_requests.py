"""The pages as plain requests see them: headers, files, forms, and what is refused."""

import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.ui.sample import HOSTILE

STATIC = Path(__file__).parents[2] / "src/manyhands/ui/static"
PAGES = [
    "",
    "queues",
    "queue?name=mail",
    "jobs",
    "failures",
    "workers",
    "schedules",
    "limits",
    "events",
    "bulk",
    "find?q=mail-nothing",
    "audit",
    "servers",
    "about",
]
FIRST_LOAD_BYTES_MAX = 80_000
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def csrf_of(http: httpx.Client, page: str = "queues") -> str:
    return re.search(r'name="csrf" value="([^"]+)"', http.get(f"/ui/{page}").text)[1]


def send(http: httpx.Client, page: str, **fields) -> httpx.Response:
    return http.post(f"/ui/{page}", data={"csrf": csrf_of(http), **fields})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_forbids_scripts_and_styles_that_are_not_files_of_ours(http, page):
    answer = http.get(f"/ui/{page}")

    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    elements = Elements(answer.text).found
    assert not [tag for tag, attributes in elements if "style" in attributes or tag == "style"]
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    for tag, attributes in elements:
        place = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
        assert place is None or place.startswith("/ui/static/")
        assert tag != "script" or "src" in attributes


@pytest.mark.parametrize("page", PAGES)
def test_a_refresh_gets_the_main_block_alone(http, page):
    answer = http.get(f"/ui/{page}", headers={"hx-request": "true"})

    assert answer.status_code == 200
    assert "<h1>" in answer.text
    assert "<html" not in answer.text
    assert "hx-request" in answer.headers["vary"]


@pytest.mark.parametrize("page", ["", "queues", "queue?name=work"])
def test_the_first_load_is_small(http, page):
    answer = http.get(f"/ui/{page}")
    files = [
        attributes.get("src") or attributes["href"]
        for tag, attributes in Elements(answer.text).found
        if tag == "script" or (tag == "link" and attributes["rel"] in ("stylesheet", "icon"))
    ]

    sizes = [int(answer.headers["content-length"])]
    for file in files:
        found = http.get(file)
        assert found.status_code == 200
        sizes.append(int(found.headers["content-length"]))
    assert sum(sizes) < FIRST_LOAD_BYTES_MAX


def test_a_file_is_kept_for_ever_under_the_address_that_names_its_content(http):
    address = re.search(r'href="(/ui/static/ui.css\?v=\w+)"', http.get("/ui/").text)[1]

    named, plain = http.get(address), http.get("/ui/static/ui.css")
    again = http.get("/ui/static/ui.css", headers={"if-none-match": plain.headers["etag"]})

    assert "immutable" in named.headers["cache-control"]
    assert plain.headers["cache-control"] == "no-cache"
    assert named.headers["content-encoding"] == "gzip"
    assert (again.status_code, again.content) == (304, b"")
    unpacked = http.get("/ui/static/ui.css", headers={"accept-encoding": "identity"})
    assert unpacked.content == named.content


def test_files_of_others_are_what_their_licences_belong_to():
    table = (STATIC / "vendor/README.md").read_text()
    rows = re.findall(r"^\| (\S+) \| .+ \| .+\((\S+)\) \| ([0-9a-f]{64}) \|$", table, re.MULTILINE)
    files = {file.name for file in (STATIC / "vendor").iterdir() if file.suffix in (".js", ".css")}

    assert {name for name, _, _ in rows} == files
    for name, licence, digest in rows:
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
        assert (STATIC / "vendor" / licence).stat().st_size > 100


def test_people_are_led_to_the_pages_and_programs_are_not(http):
    assert http.get("/ui").headers["location"] == "/ui/"
    assert http.get("/ui").status_code == 308
    browser = http.get("/", headers={"accept": "text/html,*/*"})
    assert (browser.status_code, browser.headers["location"]) == (302, "/ui/")
    assert http.get("/").json()["results"]["name"] == "manyhands"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("queue?name=nowhere", 404),
        ("queue", 404),
        ("static/../site.py", 404),
        ("static/nothing.js", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(http, path, status):
    answer = http.get(f"/ui/{path}")

    assert answer.status_code == status
    assert "there is no" in answer.text.lower()


def test_a_link_from_another_site_leads_here_but_nothing_else_does(http):
    cross = {"sec-fetch-site": "cross-site"}

    assert http.get("/ui/queues", headers={**cross, **NAVIGATION}).status_code == 200
    fetched = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    assert http.get("/ui/queues", headers={**cross, **fetched}).status_code == 403
    framed = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert http.get("/ui/queues", headers={**cross, **framed}).status_code == 403
    assert http.get("/api/jobs", headers={**cross, **NAVIGATION}).status_code == 403
    posted = http.post("/ui/queues", headers={**cross, **NAVIGATION}, data={"csrf": csrf_of(http)})
    assert posted.status_code == 403


def test_a_form_is_taken_only_with_its_proof(http, api):
    fields = {"queue": "mail", "action": "pause"}
    key = csrf_of(http)

    for wrong in ({}, {"csrf": ""}, {"csrf": key[:-1] + "x"}, {"csrf": "nonsense"}):
        answer = http.post("/ui/queues", data={**fields, **wrong})
        assert answer.status_code == 403
        assert "not from this server" in answer.text
    with httpx.Client(base_url=str(http.base_url), timeout=120.0) as stranger:
        assert stranger.post("/ui/queues", data={**fields, "csrf": key}).status_code == 403
    assert http.post("/ui/queues", json=fields).status_code == 415
    too_large = {**fields, "csrf": key, "x": "y" * (1 << 20)}
    assert http.post("/ui/queues", data=too_large).status_code == 413
    assert not api.get("queues/mail")["paused"]


def test_a_proof_outlives_a_restart_and_is_another_each_time(http):
    first, second = csrf_of(http), csrf_of(http)

    assert first != second
    assert send(http, "theme", theme="dark", csrf=first).status_code == 303


def test_pausing_works_without_scripts_and_tells_so_once(http, api):
    answer = send(http, "queues", queue="mail", action="pause", back="/ui/queues?q=mail")

    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queues?q=mail")
    assert api.get("queues/mail")["paused"]
    assert "Queue mail is paused." in http.get("/ui/queues").text
    assert "Queue mail is paused." not in http.get("/ui/queues").text
    send(http, "queues", queue="mail", action="resume")
    assert not api.get("queues/mail")["paused"]


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example", "/api/jobs", "x\r\ny"]
)
def test_a_form_leads_back_to_pages_of_ours_alone(http, place):
    answer = send(http, "queues", queue="mail", action="resume", back=place)

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ui/queues")


def test_hostile_names_stand_there_as_text(http):
    for page in (
        "queues",
        f"queue?name={quote(HOSTILE)}",
        f"queue?name={quote(HOSTILE)}&tab=ready",
    ):
        text = http.get(f"/ui/{page}").text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "\u202e" not in re.sub(r'(value|href|title|data-topic)="[^"]*"', "", text)


def test_settings_with_mistakes_are_shown_with_a_sentence_under_each(http, api):
    fields = {"action": "settings", "attempts_max": "many", "lease_ms": "5 parsecs", "rate": "fast"}

    answer = send(http, "queue?name=mail", **fields)

    assert answer.status_code == 200
    assert "This must be a whole number." in answer.text
    assert "A duration is a number with a unit" in answer.text
    assert "A rate is a number and a time" in answer.text
    assert 'value="5 parsecs"' in answer.text
    assert api.get("queues/mail")["policy"] == {}


def test_settings_of_a_queue_are_kept_and_can_be_taken_back(http, api):
    fields = {"attempts_max": "3", "lease_ms": "2 m", "rate": "10 per 1 m", "backoff_first": "5 s"}

    send(http, "queue?name=mail", action="settings", **fields)

    policy = api.get("queues/mail")["policy"]
    assert policy["attempts_max"] == 3
    assert policy["lease_ms"] == 120_000
    assert policy["rate"] == {"count": 10, "per_ms": 60_000}
    assert policy["backoff"]["first_ms"] == 5_000
    assert 'value="2 m"' in http.get("/ui/queue?name=mail&tab=settings").text
    send(http, "queue?name=mail", action="settings")
    assert api.get("queues/mail")["policy"] == {}


def test_each_setting_of_a_queue_shows_its_name_in_the_api(http, api):
    policy = {
        "attempts_max": 3,
        "backoff": {"first_ms": 10_000, "factor": 3, "ms_max": 11_000},
        "lease_ms": 1_000,
        "lease_forced": True,
        "attempt_ms_max": 2_000,
        "grace_ms": 3_000,
        "on_expiry": "lapse",
        "concurrency_max": 4,
        "rate": {"count": 6, "per_ms": 7_000},
        "jobs_max": 5,
        "record_ms": 8_000,
        "records_max": 9,
    }
    http.put("/api/queues/mail", json={"policy": policy}).raise_for_status()
    assert api.get("queues/mail")["policy"].keys() == policy.keys()

    page = http.get("/ui/queue?name=mail&tab=settings").text
    http.put("/api/queues/mail", json={"policy": {}}).raise_for_status()

    backoff = {f"backoff.{name}" for name in policy.pop("backoff")}
    shown = set(re.findall(r"<code>([a-z_.]+)</code>(?:</span>)?</label>", page))
    assert shown == {*policy, *backoff}


def test_what_destroys_asks_first_and_says_how_much(http, api):
    first = send(http, "limits", action="remove", name="database")
    assert first.status_code == 200
    assert "Remove the limit database?" in first.text
    assert api.get("limits")

    second = send(http, "limits", action="remove", name="database", confirmed="yes")

    assert second.status_code == 303
    assert not api.get("limits")
    send(http, "limits", action="set", name="database", max="2")
    assert api.get("limits") == [{"name": "database", "concurrency_max": 2, "used": 1}]


def test_a_schedule_is_made_changed_run_paused_and_removed(http, api):
    made = {"id": "weekly", "queue": "reports", "when": "0 4 * * 1", "zone": "Europe/Vienna"}
    send(http, "schedules", action="put", payload='{"a": 1}', tags="x y", **made)
    assert api.get("schedules")[-1] | {"next_at": 0} == {
        **api.get("schedules")[-1],
        "id": "weekly",
        "cron": "0 4 * * 1",
        "payload": {"a": 1},
        "tags": ["x", "y"],
        "next_at": 0,
    }

    send(http, "schedules", action="put", **{**made, "when": "every 90 s"})
    send(http, "schedules", action="run", schedule="weekly")
    send(http, "schedules", action="pause", schedule="weekly")

    changed = api.get("schedules")[-1]
    assert (changed["interval_ms"], changed["cron"], changed["paused"]) == (90_000, None, True)
    assert api.get("queues/reports")["counts"]["ready"] == 1
    send(http, "schedules", action="remove", schedule="weekly", confirmed="yes")
    assert [row["id"] for row in api.get("schedules")] == ["nightly"]


def test_a_schedule_that_is_run_now_gives_its_job_the_headers_that_a_worker_needs(http, api):
    template = {"queue": "run-now", "interval_ms": 3_600_000, "headers": {"task": "beat"}}
    api.http.put("/api/schedules/run-now", json=template)

    send(http, "schedules", action="run", schedule="run-now")

    (job,) = api.get("jobs?queue=run-now")
    assert api.get(f"jobs/{job['id']}")["headers"] == {"task": "beat"}
    api.http.delete("/api/schedules/run-now")


def test_a_schedule_with_mistakes_is_told_under_its_fields(http):
    answer = send(
        http, "schedules", action="put", when="0 99 * * *", zone="Mars/Olympus", priority="x"
    )

    assert "A schedule needs a name." in answer.text
    assert "A schedule needs a queue." in answer.text
    assert "There is no time zone" in answer.text
    assert "A priority is a number" in answer.text
    wrong = send(http, "schedules", action="put", id="a", queue="b", when="0 99 * * *")
    assert "is not a cron line" in wrong.text


def test_the_jobs_of_a_worker_can_be_released(http, api):
    api.results("submit", queue="taken", payload=1)
    api.results("claim", queue="taken", worker="silent")

    asked = send(http, "workers", action="depart", realm="native", worker="silent")
    assert "Release 1 job of worker silent?" in asked.text
    send(http, "workers", action="depart", realm="native", worker="silent", confirmed="yes")

    assert api.get("queues/taken")["counts"]["ready"] == 1


def test_the_stream_says_that_something_changed_and_never_what(http, api, queue):
    with http.stream("GET", "/ui/live", params={"topic": f"queue:{queue}"}) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: hello"
        api.results("submit", queue=queue, payload="secret")
        assert next(line for line in lines if line.startswith("event:")) == "event: change"
        assert next(lines) == "data: {}"


def test_what_is_done_here_is_on_record_with_how_many_it_changed(http, api):
    send(http, "queues", queue="mail", action="pause")
    send(http, "queues", queue="mail", action="resume")

    last, first = api.get("audit?count=2")
    assert (first["what"], first["target"], first["request"]) == (
        "set queue",
        "mail",
        "POST /ui/queues",
    )
    assert (last["changed"], last["asked"], last["address"]) == (1, 1, "127.0.0.1")
    shown = http.get("/ui/audit").text
    assert "set queue" in shown
    assert "POST /ui/queues" in shown


def test_names_that_begin_and_end_with_blanks_are_themselves(http, api):
    name = "  two blanks  "
    api.results("submit", queue=name, payload=1)

    assert http.get("/ui/queue", params={"name": name}).status_code == 200
    send(http, "queues", queue=name, action="pause")

    assert api.get("queues/" + quote(name))["paused"]


def test_cookies_of_other_programs_on_this_host_are_in_nobody_s_way(http):
    http.cookies.set("odd", 'a"b[]{}/,@\\', domain="127.0.0.1")
    http.headers["cookie"] = '=; a b=c; x="; ' + "; ".join(
        f"{name}={value}" for name, value in http.get("/ui/").cookies.items()
    )

    assert send(http, "theme", theme="dark").status_code == 303
