"""Whatever a peer sends, it gets a sentence, and the server goes on."""

import gzip
import socket

import msgspec
import pytest

JSON = {"content-type": "application/json"}


def code(response) -> tuple[int, str]:
    envelope = response.json()
    assert envelope["results"] is None
    assert envelope["error"]["message"]
    assert envelope["time"]["total"] >= 0
    assert response.headers["cache-control"] == "no-store"
    return response.status_code, envelope["error"]["code"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/submit", "POST"),
        ("HEAD", "/api/claim", "POST"),
        ("POST", "/api/jobs", "GET, HEAD"),
        ("PATCH", "/api/queues/q", "GET, PUT, DELETE, HEAD"),
        ("GET", "/api/limits/q", "PUT, DELETE"),
    ],
)
def test_a_wrong_method_is_told_which_are_right(api, method, path, allow):
    response = api.http.request(method, path)

    assert response.status_code == 405
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/jobs/ab/cd", "/api/jobs/", "/%FF"])
def test_an_unknown_path_is_not_found(api, path):
    response = api.http.get(path)

    if path == "/api/jobs/":
        assert response.status_code == 200  # a slash too many is forgiven
    else:
        assert code(response) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "invalid_json")),
        (b"{", (400, "invalid_json")),
        (b"\xff\xfe", (400, "invalid_json")),
        (b'{"queue": "q", "payload": "\xc3"}', (400, "invalid_json")),
        (b'{"queue": "q", "payload": ' + b"[" * 100_000, (400, "invalid_json")),
        (b'{"queue": "q", "payload": Infinity}', (400, "invalid_json")),
        (b"[]", (400, "invalid_body")),
        (b'{"queue": null}', (400, "invalid_body")),
        (b'{"queue": "q", "queues": "q"}', (400, "invalid_body")),
        (b'{"queue": "q", "delay_ms": 1e3}', (400, "invalid_body")),
        (b'{"queue": "q", "delay_ms": -1}', (400, "bad_time")),
        (b'{"queue": "q", "delay_ms": 99999999999999}', (400, "bad_time")),
        (b'{"queue": "q", "delay_ms": 99999999999999999999999}', (400, "invalid_body")),
        (b'{"queue": "q", "priority": 1e300}', (400, "bad_priority")),
        (b'{"queue": ".."}', (400, "bad_queue_name")),
        (b'{"queue": "a\\u0000b"}', (400, "bad_queue_name")),
        (b'{"queue": "q", "id": "xyz"}', (400, "bad_job_id")),
        (b'{"queue": "q", "tags": [""]}', (400, "bad_tag")),
        (b'{"queue": "q", "unique_key": ""}', (400, "bad_unique_key")),
        (b'{"queue": "q", "depends_on": ["ffff"]}', (409, "unknown_dependency")),
        (b'{"items": []}', (400, "empty_batch")),
    ],
)
def test_a_wrong_submit_changes_nothing(api, body, expected):
    before = api.http.get("/api/events?count=1").json()["last_seq"]

    assert code(api.http.post("/api/submit", content=body, headers=JSON)) == expected
    assert api.http.get("/api/events?count=1").json()["last_seq"] == before


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("claim", b"{}", (400, "invalid_body")),
        ("complete", b'{"id": "ff", "token": "t"}', (404, "unknown_job")),
        ("complete", b'{"items": []}', (400, "empty_batch")),
        (
            "complete",
            b'{"items": [{"id": "f", "token": ""}], "all_or_nothing": true}',
            (400, "invalid_body"),
        ),
        ("cancel", b'{"id": "ff"}', (404, "unknown_job")),
        ("cancel", b"{}", (400, "empty_batch")),
        ("requeue", b'{"id": "ff"}', (404, "unknown_job")),
        ("progress", b'{"id": "ff", "token": "t", "numerator": "x"}', (400, "invalid_body")),
    ],
)
def test_a_wrong_command_gets_a_code(api, path, body, expected):
    assert code(api.http.post(f"/api/{path}", content=body, headers=JSON)) == expected


@pytest.mark.parametrize(
    "query",
    [
        "state=nonsense",
        "order=up",
        "count=0",
        "count=x",
        "count=99999",
        "after=-1",
        "stat=ready",
        "age_min=nan",
        "age_min=-1",
        "queue=%FF",
    ],
)
def test_a_wrong_query_is_refused(api, query):
    assert code(api.http.get(f"/api/jobs?{query}")) == (400, "invalid_query")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken(api, kind):
    headers = {} if kind is None else {"content-type": kind}
    response = api.http.post("/api/submit", content=b'{"queue": "q"}', headers=headers)

    assert code(response) == (415, "unsupported_media_type")


def test_json_may_have_parameters_and_suffixes(api, queue):
    body = f'{{"queue": "{queue}"}}'.encode()
    for kind in ("application/json; charset=utf-8", "application/vnd.x+json", "Application/JSON"):
        response = api.http.post("/api/submit", content=body, headers={"content-type": kind})
        assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-purpose": "prefetch"},
        {"purpose": "prefetch"},
        {"x-moz": "prefetch"},
        {"x-purpose": "preview"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_pages_of_other_sites_are_kept_out(api, queue, headers):
    response = api.http.post("/api/submit", json={"queue": queue}, headers=headers)

    assert code(response) == (403, "cross_site")
    assert code(api.http.get("/api/jobs", headers=headers)) == (403, "cross_site")


def test_our_own_pages_are_let_in(api, served, queue):
    headers = {"origin": served.url, "sec-fetch-site": "same-origin"}

    assert api.http.post("/api/submit", json={"queue": queue}, headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.1.2.3", "a b", ""])
def test_a_foreign_host_name_is_refused(api, host):
    assert code(api.http.get("/api/jobs", headers={"host": host})) == (421, "unknown_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]", "127.9.9.9"])
def test_names_of_this_machine_are_answered_to(api, host):
    assert api.http.get("/healthz", headers={"host": host}).status_code == 200


def test_a_body_beyond_the_bound_is_refused_unread(served):
    head = b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    answer = talk(served, head + b"Content-Length: 99999999999\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000, b"431"),
    ],
)
def test_what_is_no_decent_request_is_answered_and_hung_up_on(served, request_bytes, status):
    answer = talk(served, request_bytes)

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b'"error"' in answer


def talk(served, request_bytes: bytes) -> bytes:
    """Send, then read until the server hangs up."""
    host, port = served.addresses["http"].split(":")
    gathered = b""
    with socket.create_connection((host, int(port)), timeout=90) as peer:
        peer.sendall(request_bytes)
        if request_bytes.startswith(b"GET / HTTP/1.1\r\n\r\n"):
            peer.shutdown(socket.SHUT_WR)
        while chunk := peer.recv(65536):
            gathered += chunk
    return gathered


@pytest.mark.parametrize("path", ["/api/submit", "/add/q", "/0.2.0/task/new"])
def test_a_compressed_body_is_refused_with_a_sentence(api, path):
    body = gzip.compress(b'{"queue": "q"}')

    response = api.http.post(path, content=body, headers={**JSON, "content-encoding": "gzip"})

    assert response.status_code == 415
    assert "compressed" in response.text


def test_a_body_that_says_that_it_is_not_compressed_is_read(api, queue):
    headers = {**JSON, "content-encoding": "identity"}

    response = api.http.post("/api/submit", json={"queue": queue}, headers=headers)

    assert response.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs?state=ready&state=leased",
        "/api/events?count=1&count=2",
        "/api/events?count=1&c%6Funt=2",
        "/get/q?host=a&host=b",
        "/events?after=0&after=0",
    ],
)
def test_a_parameter_that_is_given_twice_is_refused(api, path):
    response = api.http.get(path)

    assert code(response) == (400, "invalid_query")
    assert "given twice" in response.text


def test_a_claim_of_a_task_says_who_claims(api):
    missing = api.http.get("/0.2.0/claim-work/default/t")
    twice = api.http.get("/0.2.0/claim-work/default/t?worker_group=g&worker_id=w&worker_id=v")

    assert missing.status_code == 400
    assert "worker_id" in missing.json()["message"]
    assert twice.status_code == 400
    assert "given twice" in twice.json()["message"]


_HUGE = 10**400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/limits/huge", {"concurrency_max": _HUGE}),
        ("PUT", "/api/queues/huge", {"policy": {"concurrency_max": _HUGE}}),
        ("PUT", "/api/queues/huge", {"policy": {"jobs_max": _HUGE}}),
        ("PUT", "/api/queues/huge", {"policy": {"records_max": _HUGE}}),
        ("PUT", "/api/queues/huge", {"policy": {"rate": {"count": _HUGE, "per_ms": 1000}}}),
        ("PUT", "/api/queues/huge", {"policy": {"backoff": {"ms_max": _HUGE}}}),
        ("PUT", "/api/schedules/huge", {"queue": "q", "interval_ms": 1000, "backlog_max": _HUGE}),
        ("POST", "/api/submit", {"queue": "huge", "attempts_max": _HUGE}),
        ("POST", "/api/submit", {"queue": "huge", "deadline_at": _HUGE}),
        ("POST", "/api/claim", {"queue": "huge", "count": _HUGE}),
        ("POST", "/api/progress", {"id": "ab", "token": "t", "numerator": _HUGE}),
        ("POST", "/limits/huge", {"data": {"max": _HUGE}}),
        ("POST", "/queues/huge", {"data": {"max_concurrency": _HUGE}}),
    ],
)
def test_a_number_that_nobody_can_mean_is_refused_with_a_sentence(api, method, path, body):
    content = msgspec.json.encode(body)

    response = api.http.request(method, path, content=content, headers=JSON)

    assert response.status_code == 400, response.text
    assert "9007199254740992" in response.text
    assert api.http.get("/ui/limits").status_code == 200
    assert "huge" not in [row["name"] for row in api.get("limits")]
    assert "huge" not in [row["name"] for row in api.get("queues")]


def test_a_completed_job_keeps_its_result(api, queue):
    api.results("submit", queue=queue)
    [job] = api.results("claim", queue=queue)
    proof = {"id": job["id"], "token": job["token"]}
    api.results("complete", **proof, result=1)

    assert api.results("complete", **proof, result=1)["repeated"] is True
    assert api.results("complete", **proof)["repeated"] is True
    assert api.error("complete", **proof, result=2) == (409, "already_completed")
    assert api.get(f"jobs/{job['id']}")["result"] == 1


def test_a_job_that_waits_for_itself_is_refused_as_a_cycle(api, queue):
    body = {"queue": queue, "id": "7070", "depends_on": ["7070"]}

    assert api.error("submit", **body) == (409, "cycle")
