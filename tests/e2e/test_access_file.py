"""The access file: every protocol asks who its peers are, and obeys their roles and queues."""

import base64
import re
import signal
import socket
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from manyhands.protocols.dwork.codec import Kind
from manyhands.protocols.gearman import codec as wire
from tests.e2e.dwork_talk import Talk as DworkTalk
from tests.e2e.dwork_talk import a_task
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import command, environment, run, serving, wait_until

ALL = ("--store", "memory", "--gearman", "127.0.0.1:0", "--dwork", "127.0.0.1:0")
ROLES = ("read", "submit", "work", "worker", "operate")


def new(file, name: str, *more: str) -> str:
    made = run("access", "new", name, "--file", str(file), *more)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("access") / "access.toml"
    made = {role: new(file, role, "--role", role) for role in ROLES}
    made["mailer"] = new(file, "mailer", "--role", "worker", "--queues", "mail.*")
    made["file"] = str(file)
    return made


@pytest.fixture(scope="module")
def guarded(tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with serving(folder, *ALL, "--access", tokens["file"]) as served:
        yield served


def http(served, token: str | None = None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=served.url, headers=headers, timeout=20)


# What each role may do, from the point of view of a client.
MATRIX = {
    "read": {"look"},
    "submit": {"submit"},
    "work": {"work"},
    "worker": {"submit", "work"},
    "operate": {"look", "submit", "work", "operate"},
}


@pytest.mark.parametrize("role", ROLES)
def test_over_http_a_role_may_do_what_the_table_says(guarded, tokens, role):
    """S9: a worker's token submits and works, and cannot delete queues."""
    with http(guarded, tokens[role]) as client:
        requests = {
            "look": client.get("/api/queues"),
            "submit": client.post("/api/submit", json={"queue": "q", "payload": 1}),
            "work": client.post("/api/claim", json={"queues": ["none"], "worker": "w"}),
            "operate": client.put("/api/queues/made", json={"paused": False}),
        }

    done = {right for right, answer in requests.items() if answer.is_success}
    assert done == MATRIX[role], {right: answer.text for right, answer in requests.items()}
    refused = [answer for answer in requests.values() if not answer.is_success]
    assert all(answer.status_code == 403 for answer in refused)


@pytest.mark.parametrize("role", ROLES)
def test_over_qless_a_role_may_do_what_the_table_says(guarded, tokens, role):
    with http(guarded, tokens[role]) as client:
        added = client.post("/add/q", json={"data": [{"meta": 1}]})
        taken = client.get("/get/none")

    assert (added.status_code == 200 and not added.json().get("errors")) == (
        "submit" in MATRIX[role]
    ), added.text
    assert (taken.status_code == 200) == ("work" in MATRIX[role]), taken.text


@pytest.mark.parametrize("role", ROLES)
def test_over_gearman_a_role_may_do_what_the_table_says(guarded, tokens, role):
    with GearmanTalk(guarded) as talk:
        assert talk.tell(wire.OPTION_REQ, b"token:" + tokens[role].encode())[0] == wire.OPTION_RES
        made = talk.tell(wire.SUBMIT_JOB_BG, b"q", b"", b"data")
        talk.put(wire.CAN_DO, b"none")
        given = talk.tell(wire.GRAB_JOB)
    with GearmanTalk(guarded) as talk:
        talk.send(b"auth " + tokens[role].encode() + b"\r\nstatus\r\ncreate function f\r\n")
        talk.send(b"version\r\n")
        said = b""
        while b"OK 0" not in said and b"\nOK " not in said[4:]:
            said += talk.socket.recv(65536)

    assert (made[0] == wire.JOB_CREATED) == ("submit" in MATRIX[role]), made
    assert (given[0] == wire.NO_JOB) == ("work" in MATRIX[role]), given
    for packet in (made, given):
        if packet[0] == wire.ERROR:
            assert packet[1][0] == b"NOT_ALLOWED"
            assert role.encode() in packet[1][1]
    refusals = said.count(b"ERR NOT_ALLOWED")
    assert refusals == 2 - len({"look", "operate"} & MATRIX[role]), said


def test_without_credentials_nothing_is_done_and_nothing_is_shown(guarded):
    with http(guarded) as client:
        for path in ("/api/queues", "/api/jobs", "/metrics", "/queues", "/ui/", "/api/events"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert "www-authenticate" in answer.headers
        assert client.get("/healthz").status_code == 200
    with GearmanTalk(guarded) as talk:
        for packet in (
            (wire.SUBMIT_JOB_BG, b"q", b"", b"data"),
            (wire.SUBMIT_JOB, b"q", b"", b"data"),
        ):
            kind, args = talk.tell(*packet)
            assert kind == wire.ERROR, packet
            assert args[0] == b"NOT_ALLOWED"


def test_patterns_hold_in_every_protocol(guarded, tokens):
    with http(guarded, tokens["mailer"]) as client:
        assert client.post("/api/submit", json={"queue": "mail.out", "payload": 1}).is_success
        refused = client.post("/api/submit", json={"queue": "web", "payload": 1})
        assert refused.status_code == 403
        assert "mail.*" in refused.json()["error"]["message"]
    with GearmanTalk(guarded) as talk:
        talk.tell(wire.OPTION_REQ, b"token:" + tokens["mailer"].encode())
        assert talk.tell(wire.SUBMIT_JOB_BG, b"mail.in", b"", b"x")[0] == wire.JOB_CREATED
        assert talk.tell(wire.SUBMIT_JOB_BG, b"web", b"", b"x")[0] == wire.ERROR


def test_reading_shows_only_what_a_caller_may_see(tmp_path_factory):
    file = tmp_path_factory.mktemp("more") / "access.toml"
    reader = new(file, "wall", "--role", "read", "--queues", "mail.*")
    folder = tmp_path_factory.mktemp("reading")
    operator = new(file, "ada", "--role", "operate")
    with serving(folder, *ALL, "--access", str(file)) as served, http(served, operator) as ada:
        ids = {
            queue: ada.post("/api/submit", json={"queue": queue, "payload": f"in {queue}"}).json()[
                "results"
            ]["id"]
            for queue in ("mail.seen", "vault")
        }
        with http(served, reader) as wall:
            assert [row["name"] for row in wall.get("/api/queues").json()["results"]] == [
                "mail.seen"
            ]
            assert wall.get("/api/queues/vault").status_code == 404
            for path in ("/api/jobs", "/api/jobs?text=in", "/api/events"):
                shown = wall.get(path)
                assert ids["mail.seen"] in shown.text, path
                assert ids["vault"] not in shown.text, path
            assert wall.get(f"/api/jobs/{ids['vault']}").status_code == 403


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2030-01-31T00:00:00Z", "2030-01-31T00:00:00Z"),
        ("2030-01-31T01:30:00+02:00", "2030-01-30T23:30:00Z"),
    ],
)
def test_a_caller_ends_at_an_instant_whatever_its_zone(tmp_path, given, kept):
    file = tmp_path / "access.toml"
    new(file, "visitor", "--role", "read", "--expires", given)

    assert f"expires = {kept}\n" in file.read_text()


def test_a_caller_ends_after_a_duration(tmp_path):
    file = tmp_path / "access.toml"
    before = datetime.now(UTC).replace(microsecond=0)
    new(file, "visitor", "--role", "read", "--expires", "90d")

    [entry] = tomllib.loads(file.read_text())["caller"]
    assert before <= entry["expires"] - timedelta(days=90) <= datetime.now(UTC)


@pytest.mark.parametrize("given", ["2030", "2030-01-31", "soon", "99999999w", "1d\nrole='operate'"])
def test_what_is_neither_an_instant_nor_a_duration_makes_no_caller(tmp_path, given):
    file = tmp_path / "access.toml"

    ended = run("access", "new", "x", "--role", "read", "--expires", given, "--file", str(file))

    assert ended.returncode == 2
    assert "--expires" in ended.stderr
    assert not file.exists()


def test_the_audit_log_can_be_searched(guarded, tokens):
    with http(guarded, tokens["read"]) as client:
        client.post("/api/cancel", json={"ids": ["1"]})
    with http(guarded, tokens["mailer"]) as client:
        client.put("/api/queues/mail.x", json={"paused": True})
    with http(guarded, tokens["operate"]) as client:
        client.put("/api/queues/audited", json={"paused": False})
        mine = client.get("/api/audit", params={"who": "mailer", "what": "set queue"}).json()
        refused = client.get("/api/audit", params={"refused": "not_allowed"}).json()
        done = client.get("/api/audit", params={"target": "audited"}).json()

    assert [row["refused"] for row in mine["results"]] == ["not_allowed"]
    assert refused["results"]
    assert all(row["refused"] == "not_allowed" for row in refused["results"])
    assert [row["who"] for row in done["results"]] == ["operate"]


def test_a_submitter_sees_its_own_job_and_no_other(guarded, tokens):
    with http(guarded, tokens["submit"]) as mine, http(guarded, tokens["operate"]) as other:
        own = mine.post("/api/submit", json={"queue": "q", "payload": "mine"}).json()
        foreign = other.post("/api/submit", json={"queue": "q", "payload": "theirs"}).json()
        seen = mine.get(f"/api/jobs/{own['results']['id']}")
        hidden = mine.get(f"/api/jobs/{foreign['results']['id']}")

    assert seen.status_code == 200
    assert hidden.status_code == 403
    assert "theirs" not in hidden.text


@pytest.mark.parametrize("given", ["", "wrong", "x" * 5_000, "Ünicode"])
def test_wrong_credentials_are_refused_counted_and_never_shown(guarded, tokens, given):
    basic = base64.b64encode(f"ada:{given}".encode()).decode()
    with httpx.Client(base_url=guarded.url, timeout=20) as client:
        answer = client.get("/api/queues", headers={"Authorization": f"Basic {basic}"})
    with GearmanTalk(guarded) as talk:
        said = talk.tell(wire.OPTION_REQ, b"token:" + given.encode())

    assert answer.status_code == 401
    assert said[0] == wire.ERROR
    assert said[1][0] == b"NOT_ALLOWED"
    with http(guarded, tokens["operate"]) as client:
        metrics = client.get("/metrics").text
        assert 'manyhands_failed_logins_total{protocol="gearman"}' in metrics
        audit = client.get("/api/audit").text
    assert "log in with a" in audit
    for text in (guarded.log(), metrics, audit):
        assert not any(token in text for name, token in tokens.items() if name != "file")


def test_a_caller_that_is_removed_is_disconnected_and_a_broken_file_changes_nothing(tmp_path):
    file = tmp_path / "access.toml"
    token = new(file, "gone", "--role", "worker")
    operator = new(file, "ada", "--role", "operate")
    with serving(tmp_path, *ALL, "--access", str(file)) as served:
        with GearmanTalk(served) as talk:
            assert talk.tell(wire.OPTION_REQ, b"token:" + token.encode())[0] == wire.OPTION_RES
            good = file.read_text()
            file.write_text("this is not TOML [")
            served.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "callers stay as they were" in served.log())
            assert talk.tell(wire.ECHO_REQ, b"here")[0] == wire.ECHO_RES
            file.write_text(good)

            assert run("access", "remove", "gone", "--file", str(file)).returncode == 0
            served.process.send_signal(signal.SIGHUP)

            assert talk.is_closed_by_server()
        with http(served, token) as client:
            assert client.get("/api/jobs/1").status_code == 401
        with http(served, operator) as client:
            assert client.get("/api/queues").status_code == 200


def test_a_file_that_others_may_read_is_refused_with_what_to_do(tmp_path):
    file = tmp_path / "access.toml"
    new(file, "ada", "--role", "operate")
    file.chmod(0o644)

    started = subprocess.run(
        command("serve", "--store", "memory", "--access", str(file), "--http", "127.0.0.1:0"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert started.returncode == 1
    assert "chmod 600" in started.stderr


def test_the_command_line_makes_lists_tests_and_removes_callers(tmp_path):
    file = tmp_path / "access.toml"
    token = new(file, "mailer", "--role", "worker", "--queues", "mail.*")

    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert token not in file.read_text()
    listed = run("access", "list", "--file", str(file)).stdout
    assert "mailer" in listed
    assert "sha256" not in listed
    known = run("access", "test", "--file", str(file), "--queue", "mail.in", input=token)
    assert "mailer has the role worker: it may submit, work in mail.in." in known.stdout
    assert run("access", "test", "--file", str(file), input="other").returncode == 1
    twice = run("access", "new", "mailer", "--role", "worker", "--file", str(file))
    assert "--again" in twice.stderr
    assert run("access", "remove", "mailer", "--file", str(file)).returncode == 0
    assert run("access", "remove", "mailer", "--file", str(file)).returncode == 1
    key = run("access", "curve", str(tmp_path / "w")).stdout.strip()
    assert len(key) == 40
    assert key in (tmp_path / "w.key").read_text()
    new(file, "physics", "--role", "work", "--curve", key)


def test_an_address_is_enough_where_the_file_says_so(tmp_path):
    file = tmp_path / "access.toml"
    new(file, "here", "--role", "submit", "--address", "127.0.0.0/8")
    with serving(tmp_path, *ALL, "--access", str(file)) as served:
        with GearmanTalk(served) as talk:
            assert talk.tell(wire.SUBMIT_JOB_BG, b"q", b"", b"x")[0] == wire.JOB_CREATED
        with DworkTalk(served) as talk:
            assert talk.ask(Kind.CREATE, a_task("t")).kind is Kind.OK
            assert talk.ask(Kind.STEAL, location="w").kind is Kind.ERROR


def test_a_browser_logs_in_and_out_and_is_told_who_it_is(guarded, tokens):
    page = {"Accept": "text/html"}
    with httpx.Client(base_url=guarded.url, headers=page, timeout=20) as browser:
        first = browser.get("/ui/queues")
        assert first.status_code == 303
        assert first.headers["location"] == "/ui/login?back=/ui/queues"
        form = browser.get(first.headers["location"])

        def send(path: str, **fields: str) -> httpx.Response:
            csrf = re.search(r'name="csrf" value="([^"]+)"', form.text).group(1)
            return browser.post(path, data={"csrf": csrf, "back": "/ui/queues", **fields})

        wrong = send("/ui/login", secret="wrong")
        assert wrong.status_code == 403
        assert "unknown, or expired" in wrong.text
        assert browser.get("/ui/queues").status_code == 303
        assert browser.post("/ui/login", data={"secret": tokens["operate"]}).status_code == 403

        right = send("/ui/login", secret=tokens["operate"])
        assert right.headers["location"] == "/ui/queues"
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Log out" in browser.get("/ui/queues").text
        me = browser.get("/api/me").json()["results"]
        assert me.pop("now") > 0
        assert me == {"name": "operate", "role": "operate", "queues": []}

        assert send("/ui/logout").status_code == 303
        assert browser.get("/ui/queues").status_code == 303
        browser.cookies.set("manyhands_session", cookie.partition("=")[2].partition(";")[0])
        assert browser.get("/ui/queues").status_code == 303  # the session itself is over


def test_a_login_does_not_lead_elsewhere(guarded, tokens):
    with httpx.Client(base_url=guarded.url, timeout=20) as browser:
        for place in ("https://evil.example/", "//evil.example/", "/ui/\r\nx: y"):
            form = browser.get("/ui/login", params={"back": place})
            csrf = re.search(r'name="csrf" value="([^"]+)"', form.text).group(1)
            fields = {"csrf": csrf, "back": place, "secret": tokens["read"]}
            answer = browser.post("/ui/login", data=fields)
            assert answer.headers["location"] == "/ui/"


def test_the_audit_log_says_from_where_even_if_two_peers_send_the_same_head(guarded, tokens):
    head = f"Host: {guarded.addresses['http']}\r\nAuthorization: Bearer {tokens['mailer']}\r\n"
    for address in ("127.0.0.1", "127.0.0.3"):
        host, _, port = guarded.addresses["http"].rpartition(":")
        with socket.create_connection((host, int(port)), 90, (address, 0)) as peer:
            for _ in range(2):
                peer.sendall(f"GET /get/foreign HTTP/1.1\r\n{head}\r\n".encode())
                assert peer.recv(65536).startswith(b"HTTP/1.1 403")
    with http(guarded, tokens["operate"]) as client:
        found = client.get("/api/audit", params={"protocol": "qless", "target": "foreign"}).json()

    assert {row["address"] for row in found["results"]} == {"127.0.0.1", "127.0.0.3"}
    assert {row["who"] for row in found["results"]} == {"mailer"}
