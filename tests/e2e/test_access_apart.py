"""What callers can do to each other where protocols know peers, workers and jobs by names that
anybody may choose: nothing.
"""

import re
import subprocess
from types import SimpleNamespace

import httpx
import pytest
import zmq

from manyhands.protocols.dwork.codec import Kind, Query, encode
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.wmp.codec import Command as Wmp
from tests.e2e import stream_talk, wmp_talk
from tests.e2e.dwork_talk import a_task, addresses
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import command as serving_command
from tests.e2e.serving import environment, run, serving, wait_until

STORES = ("memory", "postgresql")
LISTENERS = ("gearman", "dwork", "wmp")
CALLERS = {
    "ada": ("operate",),
    "vaulter": ("worker", "vault.*", "vault", "dwork"),
    "mailer": ("worker", "mail.*", "mail/*"),
    "boss": ("operate", "mail.*"),
    "wall": ("read", "mail.*"),
    "reader": ("read",),
    "submitter": ("submit",),
    "hand": ("work",),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, store_of_module):
    folder = tmp_path_factory.mktemp("apart")
    file, tokens = folder / "access.toml", {}
    for name, (role, *queues) in CALLERS.items():
        flags = [flag for queue in queues for flag in ("--queues", queue)]
        made = run("access", "new", name, "--role", role, *flags, "--file", str(file))
        assert made.returncode == 0, made.stderr
        tokens[name] = made.stdout.strip()
    free = [flag for name in LISTENERS for flag in (f"--{name}", "127.0.0.1:0")]
    with serving(folder, "--store", store_of_module, *free, "--access", str(file)) as served:
        yield SimpleNamespace(served=served, tokens=tokens)
        assert "Traceback" not in served.log()


def web(world, name: str) -> httpx.Client:
    return httpx.Client(base_url=world.served.url, headers=bearer(world, name), timeout=60)


def bearer(world, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.tokens[name]}"}


def submit(world, queue: str, name: str = "ada", **more) -> str:
    with web(world, name) as client:
        made = client.post("/api/submit", json={"queue": queue, "payload": "vault", **more})
        assert made.is_success, made.text
        return made.json()["results"]["id"]


def awaited(world, queue: str) -> bool:
    with web(world, "ada") as ada:
        found = ada.get(f"/api/queues/{queue}").json()["results"]
        return bool(found and found["awaited"])


@pytest.mark.parametrize("name", ["submitter", "mailer"])
@pytest.mark.parametrize("meanwhile", ["while it is connected", "once it is gone"])
def test_an_identity_of_wmp_brings_nobody_the_jobs_of_another_caller(world, name, meanwhile):
    queue = f"vault.{name}.{meanwhile.replace(' ', '-')}"
    with web(world, "ada") as ada:
        ada.put(f"/api/queues/{queue}", json={"paused": False})

    def connect(user: str) -> wmp_talk.Talk:
        login = (user, world.tokens[user])
        address = world.served.addresses["wmp"]
        return wmp_talk.Talk(address, routing_id=b"\1worker", login=login, comes_back=False)

    with connect(name) as thief:
        with connect("vaulter") as worker:
            worker.say(Wmp.GIVE, lock="L", role=queue, timeout=600_000, wait=600_000)
            wait_until(lambda: awaited(world, queue))
            # What it says shows that it is connected; it may be refused.
            thief.say(Wmp.FETCH, request="f", job="0", wait=0)
            thief.expect(Wmp.REPLY)
            if meanwhile == "while it is connected":
                submit(world, queue)
                assert worker.expect(Wmp.TAKE).payload == b'"vault"'
        if meanwhile != "while it is connected":
            submit(world, queue)

        assert thief.is_silent()


def test_an_identity_of_dwork_brings_nobody_the_tasks_of_another_caller(world):
    context = zmq.Context()

    def connect(name: str, identity: bytes) -> zmq.Socket:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVTIMEO, 90_000)
        socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.plain_username, socket.plain_password = name.encode(), world.tokens[name].encode()
        socket.connect(f"tcp://{addresses(world.served)['dwork']}")
        return socket

    def say(socket: zmq.Socket, kind: Kind, *tasks, **fields) -> None:
        socket.send_multipart([b"", encode(Query(kind=kind, tasks=tasks, **fields))])

    def ask(socket: zmq.Socket, kind: Kind, *tasks, **fields) -> bytes:
        say(socket, kind, *tasks, **fields)
        return socket.recv_multipart()[-1]

    try:
        creator = connect("vaulter", b"creator")
        ask(creator, Kind.CREATE, a_task("first"))
        ask(creator, Kind.STEAL, location="creator")
        worker = connect("vaulter", b"worker")
        say(worker, Kind.STEAL, location="worker")
        wait_until(lambda: awaited(world, "dwork"))
        thief = connect("submitter", b"worker")
        ask(thief, Kind.LOOKUP, name="anything")

        ask(creator, Kind.CREATE, a_task("second"))

        assert b"second" in worker.recv_multipart()[-1]
        assert not thief.poll(300)
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("name", ["submitter", "mailer", "boss"])
def test_the_stream_of_another_callers_worker_cannot_be_ended_by_its_name(world, name):
    with stream_talk.talking(
        world.served, "worker-1", additional_headers=bearer(world, "vaulter")
    ) as worker:
        worker.result(stream_talk.WANT, ["vault.box"])
        with stream_talk.talking(
            world.served, "worker-1", additional_headers=bearer(world, name)
        ) as other:
            other.ask(stream_talk.DEPART, "worker-1")
        with web(world, name) as client:
            client.post("/api/depart", json={"worker": "worker-1"})

        assert worker.ask(stream_talk.WANT, ["vault.box"]) == [None, None]


def test_nobody_keeps_the_leases_of_other_queues_alive(world):
    submit(world, "vault.kept")
    with web(world, "ada") as ada:
        body = {"queue": "vault.kept", "worker": "worker-2", "term_ms": 2_000}
        job = ada.post("/api/claim", json=body).json()["results"][0]["id"]

        def expires_at() -> int | None:
            lease = ada.get(f"/api/jobs/{job}").json()["results"]["lease"]
            return None if lease is None else lease["expires_at"]

        before = expires_at()
        with stream_talk.talking(
            world.served, additional_headers=bearer(world, "mailer")
        ) as mailer:

            def is_over() -> bool:
                mailer.result(stream_talk.VOUCH, ["worker-2"])
                now = expires_at()
                assert now in (None, before)
                return now is None

            wait_until(is_over)


def test_the_list_of_gearman_workers_has_only_those_of_ones_own_queues(world):
    def lines(talk: GearmanTalk) -> list[bytes]:
        talk.send(b"workers\r\n")
        found: list[bytes] = []
        while found[-1:] != [b"."]:
            found += talk.next()[1]
        return found[:-1]

    with GearmanTalk(world.served) as worker, GearmanTalk(world.served) as wall:
        worker.tell(wire.OPTION_REQ, b"token:" + world.tokens["ada"].encode())
        worker.put(wire.SET_CLIENT_ID, b"secret-worker")
        worker.put(wire.CAN_DO, b"vault.box")
        worker.tell(wire.ECHO_REQ, b"x")
        wall.send(b"auth " + world.tokens["wall"].encode() + b"\r\n")
        wall.next()
        own_only = lines(wall)
        worker.put(wire.CAN_DO, b"mail.out")
        worker.tell(wire.ECHO_REQ, b"x")
        both = lines(wall)

    assert len(own_only) == 1
    assert not any(b"secret-worker" in line for line in own_only)
    assert any(re.search(rb"secret-worker : mail\.out$", line) for line in both)


@pytest.mark.parametrize("name", ["boss", "mailer"])
def test_a_refusal_does_not_name_the_queue_of_a_job(world, name):
    job = submit(world, "vault.hidden")
    with web(world, "ada") as ada:
        ada.put("/api/schedules/nightly", json={"queue": "vault.hidden", "interval_ms": 86_400_000})
    requests = {
        "/api/cancel": {"id": job},
        "/api/requeue": {"id": job},
        "/api/submit": {"queue": "mail.out", "id": job},
        "/api/claim": {"queue": "mail.out", "worker": "w", "id": job},
        "/api/complete": {"id": job, "token": "0" * 32},
        "/api/move": {"id": job, "queue": "mail.out"},
    }
    with web(world, name) as client:
        answers = [client.post(path, json=body) for path, body in requests.items()]
        answers.append(client.delete("/api/schedules/nightly"))

    for answer in answers:
        assert answer.status_code == 403, answer.text
        assert "vault" not in answer.text


def test_idempotency_keys_of_different_callers_have_nothing_to_do_with_each_other(world):
    key = {"Idempotency-Key": "1"}
    made = {}
    for name in ("mailer", "submitter", "ada"):
        for path, body in (
            ("/api/submit", {"queue": "mail.keys", "payload": 1}),
            ("/add/mail.keys", {"data": [{"meta": 1}]}),
        ):
            with web(world, name) as client:
                first, again = (client.post(path, json=body, headers=key) for _ in range(2))
            assert "idempotent-replayed" not in first.headers, first.text
            assert again.headers["idempotent-replayed"] == "true"
            made[name, path] = first.json()["results"]

    assert len({str(results) for results in made.values()}) == len(made)


def test_a_submitter_cannot_take_over_jobs_that_it_did_not_submit(world):
    live = submit(world, "mail.out", id="feed01")
    with web(world, "hand") as hand, web(world, "ada") as ada, web(world, "submitter") as client:
        done = submit(world, "mail.done", id="feed02")
        held = hand.post("/api/claim", json={"queue": "mail.done", "worker": "w"}).json()
        lease = {"id": done, "token": held["results"][0]["token"]}
        assert hand.post("/api/complete", json=lease | {"result": 1}).is_success
        mine = submit(world, "mail.mine", "submitter", id="feed03")

        for job, queue in ((live, "mail.out"), (done, "mail.done")):
            before = ada.get(f"/api/jobs/{job}").json()["results"]
            moved = {"data": [{"id": job, "meta": "mine", "move": True}]}
            taken = client.post(f"/add/{queue}", json=moved)
            again = client.post("/api/submit", json={"queue": queue, "payload": 2, "id": job})

            assert taken.json()["results"] == [False]
            assert again.status_code == 403
            assert ada.get(f"/api/jobs/{job}").json()["results"] == before
        moved = {"data": [{"id": mine, "meta": "mine", "move": True}]}
        assert "error" not in client.post("/add/mail.other", json=moved).text


@pytest.mark.parametrize("name", ["mailer", "boss", "submitter"])
@pytest.mark.parametrize("on_existing", ["refuse", "keep", "move", "add_dependencies"])
def test_a_chosen_name_gives_nobody_the_job_of_another_caller(world, name, on_existing):
    chosen = f"vault-{name}-{on_existing}"
    with web(world, "ada") as ada, web(world, name) as client:
        made = ada.post("/api/submit", json={"queue": "vault.box", "payload": 1, "name": chosen})
        job = made.json()["results"]["id"]
        before = ada.get(f"/api/jobs/{job}").json()["results"]
        body = {"queue": "mail.out", "payload": 2, "name": chosen, "on_existing": on_existing}
        alone = client.post("/api/submit", json=body)
        batch = client.post("/api/submit", json={"items": [body]})
        after = ada.get(f"/api/jobs/{job}").json()["results"]

    assert alone.status_code == 403, alone.text
    assert "not_allowed" in batch.text
    for answer in (alone, batch):
        assert job not in answer.text
        assert "vault.box" not in answer.text
    assert after == before


def test_a_caller_with_patterns_takes_no_part_in_the_graph_of_another_queue(world):
    with web(world, "vaulter") as vaulter, web(world, "mailer") as client:
        waits = {"namespace": "vault.graph", "name": "second", "depends_on": ["first"]}
        body = {"queue": "vault.box", "payload": 1, "on_unknown_dependency": "wait", **waits}
        assert vaulter.post("/api/submit", json=body).is_success
        body = {"queue": "mail.out", "payload": 1, "name": "first"}
        refused = client.post("/api/submit", json=body | {"namespace": "vault.graph"})
        own = client.post("/api/submit", json=body | {"namespace": "mail.graph"})

    assert refused.status_code == 403, refused.text
    assert own.is_success, own.text


@pytest.mark.parametrize("name", ["mailer", "boss"])
def test_nobody_waits_for_jobs_of_other_queues_to_see_how_they_end(world, name):
    job, own = submit(world, "vault.box"), submit(world, "mail.out")
    with web(world, name) as client:
        body = {"queue": "mail.out", "payload": 1, "depends_on": [own]}
        allowed = client.post("/api/submit", json=body)
        refused = client.post("/api/submit", json=body | {"depends_on": [own, job]})
        by_qless = client.post("/add/mail.out", json={"data": [{"meta": 1, "depends": [job]}]})

    assert allowed.is_success, allowed.text
    assert refused.status_code == 403, refused.text
    assert "vault" not in refused.text
    assert by_qless.json()["results"] == [False], by_qless.text


def test_the_commands_of_a_submitter_show_its_own_jobs_and_nothing_is_refused(world):
    own, other = submit(world, "mail.out", "submitter"), submit(world, "mail.out", "ada")
    where = {"MANYHANDS_URL": world.served.url, "MANYHANDS_TOKEN": world.tokens["submitter"]}

    def command(*arguments: str) -> str:
        done = subprocess.run(
            serving_command(*arguments),
            env=environment() | where,
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
        return done.stdout

    def refusals() -> object:
        with web(world, "ada") as ada:
            return ada.get("/api/audit", params={"who": "submitter"}).json()["results"]

    before = refusals()
    listed = command("jobs")
    shown = command("job", own)

    assert own in listed
    assert own in shown
    assert other not in listed
    assert refusals() == before


# Workers of Taskcluster, which read what they have claimed.


def claimed(world, name: str, queue: str = "mail/type") -> str:
    task = submit(world, queue, "ada", payload={"command": "x"})
    with web(world, name) as client:
        body = {"worker_group": "g", "worker_id": "w"}
        answer = client.post(f"/0.2.0/claim-work/{queue}", json=body)
        assert answer.status_code == 200, answer.text
    return task


RUN = {"worker_group": "g", "worker_id": "w", "run_id": 1}
WANTED = RUN | {"artifacts": {"x.txt": "text/plain"}}


@pytest.mark.parametrize("name", ["hand", "mailer"])
def test_whoever_may_only_work_works_on_tasks(world, name):
    task = claimed(world, name)
    with web(world, name) as client:
        definition = client.get(f"/0.2.0/store/{task}/task.json")
        reclaimed = client.post(f"/0.2.0/task/{task}/claim", json=RUN)
        urls = client.post(f"/0.2.0/task/{task}/artifact-urls", json=WANTED)
        assert urls.status_code == 200, urls.text
        stored = client.put(urls.json()["artifact_urls"]["x.txt"], content=b"here")
        completed = client.post(f"/0.2.0/task/{task}/completed", json=RUN)
        afterwards = client.get(f"/0.2.0/store/{task}/task.json")

    for answer in (definition, reclaimed, stored, completed):
        assert answer.status_code == 200, answer.text
    assert definition.json()["payload"] == {"command": "x"}
    assert afterwards.status_code == 403


@pytest.mark.parametrize("name", ["submitter", "reader", "wall", "boss", "mailer"])
def test_nobody_else_speaks_for_the_worker_of_a_task(world, name):
    task = claimed(world, "ada", "vault/type")
    with web(world, name) as client:
        answers = [
            client.post(f"/0.2.0/task/{task}/{what}", json=body)
            for what, body in (
                ("claim", RUN),
                ("completed", RUN),
                ("failed", RUN),
                ("artifact-urls", WANTED),
            )
        ]
        answers.append(client.request("GET", f"/0.2.0/task/{task}/artifact-urls", json=WANTED))
        answers.append(client.put(f"/0.2.0/store/{task}/runs/1/artifacts/x.txt", content=b""))

    for answer in answers:
        assert answer.status_code == 403, answer.text
        assert "vault" not in answer.text


def test_a_submitter_reads_the_documents_of_its_own_tasks(world):
    own, other = submit(world, "mail/type", "submitter"), submit(world, "mail/type", "ada")
    with web(world, "submitter") as client:
        assert client.get(f"/0.2.0/store/{own}/task.json").status_code == 200
        assert client.get(f"/0.2.0/store/{other}/task.json").status_code == 403
        refused = client.post(f"/0.2.0/task/{own}/artifact-urls", json=WANTED)

    assert refused.status_code == 403
