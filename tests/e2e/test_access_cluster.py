"""Callers with queue patterns at servers that share a database: what a server has to ask for, the
record of a finished job or the word of the server that decides, is judged like everything else.
"""

import httpx
import pytest

from tests.e2e.cluster import running
from tests.e2e.serving import run, wait_until

CALLERS = {
    "ada": ("operate",),
    "boss": ("operate", "mail.*"),
    "mailer": ("worker", "mail.*"),
    "submitter": ("submit",),
}


@pytest.fixture(scope="module")
def world(postgresql, tmp_path_factory):
    folder = tmp_path_factory.mktemp("access-cluster")
    file, tokens = folder / "access.toml", {}
    for name, (role, *queues) in CALLERS.items():
        flags = [flag for queue in queues for flag in ("--queues", queue)]
        made = run("access", "new", name, "--role", role, *flags, "--file", str(file))
        assert made.returncode == 0, made.stderr
        tokens[name] = made.stdout.strip()
    with running(folder, postgresql, "a", "b", access=str(file)) as cluster:
        cluster.until_ready()
        yield cluster, tokens


@pytest.fixture(params=["a", "b"])
def asking(world, request):
    """Makes a client of one of the servers: one decides, and the other has to ask it."""
    cluster, tokens = world

    def client(name: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        return httpx.Client(
            base_url=cluster.servers[request.param].url, headers=headers, timeout=60
        )

    return client


def finished(ada: httpx.Client, job: str) -> dict:
    """A job of another queue, which nobody keeps in memory any more."""
    body = {"queue": "vault.box", "payload": "vault", "id": job}
    assert ada.post("/api/submit", json=body).is_success
    held = ada.post("/api/claim", json={"queue": "vault.box", "worker": "w"}).json()["results"][0]
    lease = {"id": job, "token": held["token"]}
    assert ada.post("/api/complete", json=lease | {"result": "vault"}).is_success

    def found() -> bool:
        rows = ada.get("/api/jobs", params={"state": "completed", "queue": "vault.box"})
        return any(row["id"] == job for row in rows.json()["results"])

    wait_until(found)
    return ada.get(f"/api/jobs/{job}").json()["results"]


@pytest.mark.parametrize("name", ["boss", "mailer", "submitter"])
def test_a_finished_job_of_another_queue_cannot_be_changed_by_its_id(asking, name, request):
    job = f"feed{abs(hash(request.node.name)) % 10**8:08}"
    requests = {
        "/api/submit": {"queue": "mail.out", "payload": "mine", "id": job},
        "/api/requeue": {"id": job},
        "/api/move": {"id": job, "queue": "mail.out"},
        "/api/tags": {"id": job, "add": ["mine"]},
        "/api/cancel": {"id": job},
    }
    with asking("ada") as ada, asking(name) as client:
        before = finished(ada, job)
        answers = {path: client.post(path, json=body) for path, body in requests.items()}
        look = client.get(f"/api/jobs/{job}?wait=1")
        after = ada.get(f"/api/jobs/{job}").json()["results"]

    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        requests, 403
    )
    assert look.status_code == 403
    assert "vault" not in look.text
    assert after == before
