"""What a caller with queue patterns is shown: its queues and their jobs, wherever one can look."""

import re

import httpx
import pika
import pytest

from manyhands.site.document import APIS
from manyhands.ui.site import PAGES
from tests.e2e.serving import run, serving, wait_until

STORES = ("own", "postgresql")
SECRET = "vault"  # in every name and text of the other queue
MARK = "harmless"  # in every name and text of the caller's own


def new(file, name: str, *more: str) -> str:
    made = run("access", "new", name, "--file", str(file), *more)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def client(served, token: str) -> httpx.Client:
    return httpx.Client(
        base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=30
    )


def fill(ada: httpx.Client, queue: str, word: str) -> dict[str, str]:
    """Jobs in every state, with this word in all that can have a name."""

    def submit(**more) -> str:
        job = {"queue": queue, "payload": f"{word} payload", "tags": [f"{word}-tag"], **more}
        made = ada.post("/api/submit", json=job)
        assert made.is_success, made.text
        return made.json()["results"]["id"]

    def claim() -> dict:
        taken = ada.post("/api/claim", json={"queues": [queue], "worker": f"{word}-worker"})
        assert taken.is_success, taken.text
        return taken.json()["results"][0]

    def report(what: str, held: dict, **more) -> None:
        body = {"id": held["id"], "token": held["token"], **more}
        told = ada.post(f"/api/{what}", json=body)
        assert told.is_success, told.text

    failure = {"code": f"{word}-code", "message": f"{word} went wrong"}
    ids = {"failed": submit(attempts_max=1)}
    report("fail", claim(), **failure)
    ids["retried"] = submit(attempts_max=5)
    report("fail", claim(), **failure)
    ids["done"] = submit(priority=9)
    done = claim()
    report("log", done, message=f"{word} line")
    report("partial", done, payload=f"{word} part")
    report("complete", done, result=f"{word} result")
    ids["leased"] = submit(priority=9)
    claim()
    ids["ready"] = submit(unique_key=f"{word}-key", name=f"{word}-name")
    ids["blocked"] = submit(depends_on=[ids["ready"]])
    made = ada.put(
        f"/api/schedules/{word}-schedule",
        json={"queue": queue, "payload": f"{word} planned", "interval_ms": 86_400_000},
    )
    assert made.is_success, made.text
    return ids


@pytest.fixture(scope="module")
def world(tmp_path_factory, store_of_module):  # noqa: ARG001 - which is chosen first
    file = tmp_path_factory.mktemp("access") / "access.toml"
    tokens = {
        "wall": new(file, "wall", "--role", "read", "--queues", "mail.*"),
        "boss": new(file, "boss", "--role", "operate", "--queues", "mail.*"),
        "ada": new(file, "ada", "--role", "operate"),
    }
    folder = tmp_path_factory.mktemp("seen")
    more = ("--gearman", "127.0.0.1:0", "--amqp", "127.0.0.1:0", "--access", str(file))
    with serving(folder, *more) as served, client(served, tokens["ada"]) as ada:
        ids = {
            "own": fill(ada, "mail.out", MARK),
            "other": fill(ada, f"{SECRET}.box", SECRET),
        }
        yield served, tokens, ids


def reads() -> list[str]:
    return sorted(
        {
            route.path
            for api in APIS
            for route in api.routes
            if route.method == "GET" and not route.work and route.path != "/events"
        }
    )


VALUES = {
    "queue": (f"{SECRET}.box", "mail.out"),
    "name": (
        f"{SECRET}.box",
        f"{SECRET}-worker",
        f"{SECRET}-schedule",
        f"{SECRET}-tag",
        "mail.out",
    ),
    "task": (),
    "id": (),
    "provisioner": ("vault", "mail"),
    "run": ("1",),
    "count": ("5",),
    "worker_type": ("box",),
}


def urls(path: str, ids) -> list[str]:
    """The path with every value that could show something."""
    known = [*ids["other"].values(), *ids["own"].values()]
    found = [path]
    for name in re.findall(r"\{(\w+)(?::path)?\}", path):
        values = VALUES[name] or known
        found = [re.sub(rf"\{{{name}(:path)?\}}", value, url) for url in found for value in values]
    return found


@pytest.mark.parametrize("path", reads())
def test_no_answer_of_an_api_shows_a_caller_anything_of_other_queues(world, path):
    served, tokens, ids = world
    with client(served, tokens["wall"]) as wall:
        for url in urls(path, ids):
            answer = wall.get(url)

            assert answer.status_code < 500, (url, answer.text)
            named = SECRET in url  # an error may repeat what was asked for
            assert named or SECRET not in answer.text, (url, answer.text)
            assert not any(f"{SECRET} {what}" in answer.text for what in ("payload", "result"))
            for job_id in ids["other"].values():
                assert job_id in url or job_id not in answer.text, url


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs?text=payload",
        "/api/jobs?state=failed",
        f"/api/jobs?queue={SECRET}.box",
        f"/api/jobs?tag={SECRET}-tag",
        f"/api/history?queue={SECRET}.box",
        f"/api/failures?queue={SECRET}.box",
        "/api/audit?who=ada",
        "/jobs?text=payload",
        "/jobs?state=pending",
        f"/tags/{SECRET}-tag",
        "/api/events?after=0&count=1000",
    ],
)
def test_no_search_finds_jobs_of_other_queues(world, path):
    served, tokens, ids = world
    with client(served, tokens["wall"]) as wall:
        answer = wall.get(path)

    assert answer.status_code == 200, answer.text
    assert not any(job_id in answer.text for job_id in ids["other"].values())
    assert f"{SECRET} " not in answer.text


def pages(ids) -> list[str]:
    others = [f"/ui/job/{job_id}" for job_id in ids["other"].values()]
    return [
        *(f"/ui/{page.name}" for page in PAGES),
        *others,
        *(f"{other}/payload" for other in others),
        f"/ui/queue?name={SECRET}.box",
        f"/ui/worker?realm=api&name={SECRET}-worker",
        f"/ui/jobs?q={SECRET}",
        "/ui/jobs?q=payload",
        f"/ui/find?q={SECRET}",
        f"/ui/failures?queue={SECRET}.box",
        "/ui/?by=queue&range=24h",
        "/ui/events?topic=%23",
        "/ui/schedules?id=vault-schedule",
        "/ui/queues?sort=failed",
        "/ui/audit?who=ada",
    ]


def test_no_page_shows_a_caller_anything_of_other_queues(world):
    served, tokens, ids = world
    with client(served, tokens["wall"]) as wall, client(served, tokens["ada"]) as ada:
        for path in pages(ids):
            shown = wall.get(path)
            assert shown.status_code in (200, 303, 404), (path, shown.text)
            text = shown.text.replace(path.partition("=")[2], "")
            if SECRET not in path:
                assert SECRET not in text, path
            assert f"{SECRET} payload" not in text, path
            for job_id in ids["other"].values():
                assert job_id in path or job_id not in text, path
        everything = "".join(ada.get(path).text for path in pages(ids))

    # A test that looks for nothing proves nothing.
    assert f"{SECRET} payload" in everything
    assert f"{SECRET} went wrong" in everything
    assert f"{SECRET}-worker" in everything


def test_a_caller_is_shown_its_own_queues_in_full(world):
    served, tokens, ids = world
    with client(served, tokens["wall"]) as wall:
        queues = [row["name"] for row in wall.get("/api/queues").json()["results"]]
        qless = [row["name"] for row in wall.get("/queues").json()["results"]]
        workers = wall.get("/api/workers").text
        failures = wall.get("/api/failures").json()
        schedules = wall.get("/api/schedules").text
        history = wall.get("/api/history").json()
        metrics = wall.get("/metrics").text
        failed = wall.get("/failed").json()["results"]
        pages = {name: wall.get(f"/ui/{name}").text for name in ("", "queues", "workers", "jobs")}
        failure_page = wall.get("/ui/failures").text

    assert queues == qless == ["mail.out"]
    assert f"{MARK}-worker" in workers
    assert (failures["failed"], failures["retrying"], failures["groups"]) == (1, 1, 1)
    assert f"{MARK}-schedule" in schedules
    assert history["total"]["submitted"] == len(ids["own"])
    assert 'manyhands_queue_jobs{queue="mail.out"' in metrics
    assert sum(failed.values()) == 1
    assert "mail.out" in pages[""]
    assert "mail.out" in pages["queues"]
    assert f"{MARK}-worker" in pages["workers"]
    assert f"{MARK} payload" in pages["jobs"]
    assert f"{MARK} went wrong" in failure_page


def streamed(served, token: str, path: str, until: str) -> str:
    """What a stream of events sends until this text comes."""
    headers = {"Authorization": f"Bearer {token}"}
    said = ""
    with (
        httpx.Client(base_url=served.url, headers=headers, timeout=60) as http,
        http.stream("GET", path) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_text():
            said += piece
            if until in said:
                return said
    raise AssertionError(f"the stream ended without {until}: {said}")


def test_a_stream_of_events_sends_a_caller_only_those_of_its_queues(world):
    served, tokens, ids = world
    with client(served, tokens["ada"]) as ada:
        for queue in (f"{SECRET}.box", "mail.out"):
            last = ada.post("/api/submit", json={"queue": queue, "payload": 1}).json()

    said = streamed(served, tokens["wall"], "/events?after=0", last["results"]["id"])

    assert SECRET not in said
    assert all(job_id in said for job_id in ids["own"].values())


def test_watchers_over_amqp_get_only_what_their_caller_may_see(world):
    served, tokens, _ = world
    host, _, port = served.addresses["amqp"].rpartition(":")

    def connect(name: str) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                host, int(port), credentials=pika.PlainCredentials(name, tokens[name])
            )
        )

    exchange = "task_pending_v1"
    with connect("wall") as mine, connect("ada") as other:
        seen, whole = mine.channel(), other.channel()
        for channel, name in ((seen, "walls"), (whole, "adas")):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, exchange, "#")
        with client(served, tokens["ada"]) as ada:
            for queue in (f"{SECRET}.box", "mail.out"):
                ada.post("/api/submit", json={"queue": queue, "payload": 1})

        def got(channel, name: str) -> list[str]:
            """All messages up to that of the caller's own queue."""
            found: list[str] = []

            def is_there() -> bool:
                method, _, body = channel.basic_get(name, auto_ack=True)
                if method is not None:
                    found.append(f"{method.routing_key} {body.decode()}")
                return bool(found) and "mail" in found[-1]

            wait_until(is_there)
            return found

        bodies = got(seen, "walls")
        everything = got(whole, "adas")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            seen.basic_get("adas")

    assert any(SECRET in body for body in everything)
    assert len(bodies) == 1
    assert SECRET not in bodies[0]
    assert refused.value.reply_code == 403


def test_an_operator_of_some_queues_acts_on_the_pages_of_those_only(world):
    served, tokens, ids = world
    with client(served, tokens["boss"]) as boss:
        csrf = re.search(r'name="csrf" value="([^"]+)"', boss.get("/ui/queues").text)[1]

        def act(path: str, **form: str) -> httpx.Response:
            return boss.post(path, data={"csrf": csrf, "confirmed": "yes", **form})

        own = act("/ui/queues", action="pause", queue="mail.out")
        boss.post("/ui/queues", data={"csrf": csrf, "action": "resume", "queue": "mail.out"})
        other = act("/ui/queues", action="pause", queue=f"{SECRET}.box")
        bulk = act("/ui/jobs", action="cancel", all="yes", q="state:ready")
    with client(served, tokens["ada"]) as ada:
        paused = ada.get(f"/api/queues/{SECRET}.box").json()["results"]["paused"]
        ready = ada.get(f"/api/jobs/{ids['other']['ready']}").json()["results"]["state"]

    assert own.status_code == 303
    assert other.status_code in (303, 403, 404)
    assert paused is False
    assert bulk.status_code == 403
    assert ready == "ready"
