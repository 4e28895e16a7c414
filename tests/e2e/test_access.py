"""Tokens, roles and the audit log, over real HTTP."""

import re
import socket

import httpx
import pytest

from tests.e2e.serving import Api, run, serving

OPERATOR = "4f2c9d1b7e3a5860"
READER = "9b1e7c3d5f2a4608"
# Routes that the index does not list.
FURTHER = (
    *("GET /mail/1", "POST /0.2.0/task/new", "GET /0.2.0/claim-work/default/mail"),
    *("POST /0.2.0/claim-work/default/mail", "POST /0.2.0/task/x/claim"),
    *("POST /0.2.0/task/x/completed", "POST /0.2.0/task/x/failed", "POST /0.2.0/task/x/cancel"),
    "PUT /0.2.0/store/x/runs/0/a.txt",
)


def by(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"operator:ada:{OPERATOR}\nread-only:wall:{READER}\n")
    with serving(folder, "--store", "memory", "--tokens-file", str(tokens)) as served:
        yield served


@pytest.fixture
def ada(guarded):
    api = Api(guarded)
    api.http.headers.update(by(OPERATOR))
    yield api
    api.close()


def endpoints(api) -> list[tuple[str, str]]:
    listed = [*api.http.get("/").json()["results"]["endpoints"], *FURTHER]
    lines = [re.sub(r"\{[^}]*\}", "1", line).split(" ") for line in listed]
    return [(method, path) for method, path in lines]


def takes_work(path: str) -> bool:
    return path.startswith(("/get", "/1/", "/mail/", "/0.2.0/claim-work", "/api/stream"))


def code_of(answer: httpx.Response, path: str) -> str:
    """Of a refusal, in the form of the API that the path belongs to."""
    error = answer.json()["error"]
    return error if path.startswith("/0.2.0/") else error["code"]


def test_without_a_token_nothing_is_told_but_health(guarded, ada):
    found = endpoints(ada)
    assert len(found) > 60
    for method, path in found:
        body = {} if method in ("POST", "PUT") else None
        answer = httpx.request(method, guarded.url + path, json=body)
        if path in ("/healthz", "/readyz"):
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, (method, path)
        assert code_of(answer, path) == "unauthorized"
        schemes = [value.split(" ")[0] for value in answer.headers.get_list("www-authenticate")]
        assert [scheme.rstrip(",") for scheme in schemes] == ["Basic", "Bearer"], (method, path)


def test_who_may_only_look_is_refused_by_every_route_that_changes_something(guarded, ada):
    for method, path in endpoints(ada):
        if path == "/events":
            continue  # never ends by itself
        body = {} if method in ("POST", "PUT") else None
        answer = httpx.request(method, guarded.url + path, json=body, headers=by(READER))
        if method == "GET" and not takes_work(path):
            assert answer.status_code not in (401, 403, 500), (method, path)
        else:
            assert answer.status_code == 403, (method, path)
            assert code_of(answer, path) == "read_only"


def test_a_browser_comes_in_with_the_token_as_its_password(guarded):
    answer = httpx.get(f"{guarded.url}/api/about", auth=("ada", OPERATOR))

    assert answer.status_code == 200
    assert OPERATOR not in answer.text
    assert httpx.get(f"{guarded.url}/api/about", auth=("wall", OPERATOR)).status_code == 401


def test_a_worker_with_a_token_works(guarded):
    with httpx.Client(base_url=guarded.url, headers=by(OPERATOR)) as worker:
        added = worker.post("/add/tokens", json={"host": "w", "data": [{"meta": 1}]})
        assert added.status_code == 200
        taken = worker.get("/get/tokens/2?host=w").json()["results"]
        ids = [item["id"] for item in taken]
        done = worker.post(
            "/complete/tokens", json={"host": "w", "data": [{"id": ids[0], "meta": 2}]}
        )
        assert done.json()["results"] == ids


def test_what_operators_do_stands_in_the_audit_log(ada):
    ids = [ada.results("submit", queue="audited")["id"] for _ in range(3)]
    ada.results("claim", queue="audited")
    ada.results("cancel", ids=ids[1:])
    ada.results("priority", id=ids[0], priority=3)
    ada.http.put("/api/queues/audited", json={"paused": True}).raise_for_status()
    ada.http.post("/pause", json={"data": ["audited"]}).raise_for_status()
    schedule = {"queue": "audited", "interval_ms": 3_600_000}
    ada.http.put("/api/schedules/nightly", json=schedule).raise_for_status()
    ada.http.delete("/api/schedules/nightly").raise_for_status()
    assert ada.error("requeue", id=ids[0]) == (409, "not_finished")

    entries = ada.get("audit")

    told = [(row["what"], row["target"], row["asked"], row["changed"]) for row in entries[:7]]
    assert told == [
        ("requeue", ids[0], 1, 0),
        ("remove schedule", "nightly", 1, 1),
        ("put schedule", "nightly", 1, 1),
        ("set queue", "audited", 1, 1),
        ("set queue", "audited", 1, 1),
        ("set priority", ids[0], 1, 1),
        ("cancel", ids[1], 2, 2),
    ]
    assert entries[0]["refused"] == "not_finished"
    assert all(row["who"] == "ada" and row["role"] == "operate" for row in entries[:7])
    assert all(row["address"] == "127.0.0.1" and row["known"] for row in entries[:7])
    assert entries[6]["request"] == "POST /api/cancel"
    assert [row["protocol"] for row in entries[3:5]] == ["qless", "native"]
    assert not any(row["what"] in ("submit", "claim") for row in entries)


def test_operations_on_many_jobs_stand_in_the_audit_log_with_their_result(ada):
    ids = [ada.results("submit", queue="bulked")["id"] for _ in range(3)]
    bulk = ada.results("bulk", action="cancel", filter={"queue": "bulked"})
    assert bulk["who"] == "ada"
    while ada.get(f"bulk/{bulk['id']}")["state"] == "active":
        pass

    entries = [row for row in ada.get("audit") if bulk["id"] in row["target"]]

    assert [(row["what"], row["asked"], row["changed"]) for row in entries] == [
        ("bulk cancel completed", 3, 3),
        ("bulk cancel", 3, 0),
    ]
    assert {row["who"] for row in entries} == {"ada"}
    assert ada.get(f"jobs/{ids[0]}")["state"] == "cancelled"


def test_the_audit_log_is_read_a_page_at_a_time_and_survives_a_crash(tmp_path):
    with serving(tmp_path) as served:
        api = Api(served)
        for number in range(5):
            api.http.put(f"/api/queues/q{number}", json={}).raise_for_status()
        served.process.kill()
        served.process.wait()
        served.ready_file.unlink()
        api.close()
    with serving(tmp_path) as served:
        api = Api(served)
        api.http.put("/api/queues/q5", json={}).raise_for_status()
        first = api.http.get("/api/audit?count=4").json()
        rest = api.http.get(f"/api/audit?count=4&before={first['next']}").json()
        api.close()

    targets = [row["target"] for row in first["results"] + rest["results"]]
    assert targets == ["q5", "q4", "q3", "q2", "q1", "q0"]
    assert rest["next"] is None
    assert {row["who"] for row in first["results"]} == {""}


def test_a_read_only_server_answers_questions_and_changes_nothing(tmp_path):
    with serving(tmp_path, "--store", "memory", "--read-only") as served:
        assert httpx.get(f"{served.url}/api/jobs").status_code == 200
        answer = httpx.post(f"{served.url}/api/submit", json={"queue": "q"})
        taken = httpx.get(f"{served.url}/get/q")

    assert answer.status_code == taken.status_code == 403
    assert answer.json()["error"]["message"] == "this server is read-only over HTTP"


def test_commands_show_their_token(guarded, ada, tmp_path):
    ada.results("submit", queue="shown")
    token = tmp_path / "token"
    token.write_text(f"{OPERATOR}\n")
    wanted = ("cancel", "--queue", "shown", "--dry-run", "--server", guarded.url)

    assert run(*wanted).stderr == (
        f"manyhands: {guarded.url} requires a valid token: use --token-file, MANYHANDS_TOKEN or a"
        " profile.\n"
    )
    assert run(*wanted, "--token-file", str(token)).stdout == "1 job would be cancelled.\n"


def test_a_server_whose_tokens_cannot_be_read_does_not_start(tmp_path):
    ended = run("serve", "--data", str(tmp_path), "--tokens-file", str(tmp_path / "nobody"))

    assert ended.returncode == 2
    assert "tokens_file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_is_done_over_gearmans_admin_lines_stands_in_the_audit_log(tmp_path):
    with serving(tmp_path, "--store", "memory", "--gearman", "127.0.0.1:0") as served:
        host, _, port = served.addresses["gearman"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=90) as admin:
            admin.sendall(b"create function resize\n")
            assert admin.recv(100) == b"OK\r\n"
        api = Api(served)
        entries = api.get("audit")
        api.close()

    told = [(row["protocol"], row["what"], row["target"], row["changed"]) for row in entries]
    assert told == [("gearman", "set queue", "resize", 1)]
