"""Web pages of other origins: those that were named may use the APIs, and no others."""

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.serving import Api, Served, serving
from tests.e2e.stream_talk import LOOK, talking

NAMED, ALSO_NAMED, OTHER = "https://app.example", "http://localhost:5173", "https://evil.example"
TOKEN = "ada-has-a-s3cret-of-hers"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    origins = f"{NAMED},{ALSO_NAMED}"
    with serving(folder, "--store", "memory", "--cors-origins", origins) as found:
        yield found


def preflight(served: Served, path: str, origin: str, method: str = "POST") -> httpx.Response:
    """As a browser asks before it sends what a page wants to send."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "cors",
    }
    return httpx.options(served.url + path, headers=headers)


def from_page(origin: str) -> dict[str, str]:
    return {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}


@pytest.mark.parametrize("origin", [NAMED, ALSO_NAMED])
@pytest.mark.parametrize("path", ["/api/submit", "/add/q", "/0.2.0/claim-work/a/b", "/nowhere"])
def test_a_browser_is_told_that_a_page_of_a_named_origin_may_ask(served, origin, path):
    answer = preflight(served, path, origin)

    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"
    methods = answer.headers["access-control-allow-methods"].split(", ")
    assert {"GET", "POST", "PUT", "DELETE"} <= set(methods)
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key"} <= set(allowed)
    assert answer.headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.content == b""


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "http://app.example", f"{NAMED}:8443", f"{NAMED}.evil.example", "*"]
)
def test_a_page_of_another_origin_is_kept_out(served, origin):
    headers = {**from_page(origin), "Content-Type": "application/json"}

    answers = [
        preflight(served, "/api/submit", origin),
        httpx.post(f"{served.url}/api/submit", content=b'{"queue":"x"}', headers=headers),
        httpx.get(f"{served.url}/api/queues", headers=headers),
        httpx.get(f"{served.url}/get/x", headers=headers),
    ]

    assert {answer.status_code for answer in answers} == {403}
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["error"]["code"] == "cross_site"


def test_a_page_of_a_named_origin_submits_and_takes_work_in_every_api(served):
    api = Api(served)
    api.http.headers.update(from_page(NAMED))

    answers = [
        api.post("submit", queue="page", payload=1),
        api.http.post("/add/page", json={"data": [{"meta": 1}]}),
        api.post("claim", queue="page"),
        api.http.get("/get/page"),
        api.http.get("/api/queues/page"),
    ]
    refused = [api.http.get("/nowhere"), api.post("claim")]
    api.close()

    assert [answer.status_code for answer in answers] == [200] * 5
    assert [answer.status_code for answer in refused] == [404, 400]
    assert len(answers[2].json()["results"]) == 1
    for answer in (*answers, *refused):
        assert answer.headers["access-control-allow-origin"] == NAMED
        exposed = answer.headers["access-control-expose-headers"]
        assert {"Location", "Retry-After"} <= set(exposed.split(", "))


def test_the_same_request_over_and_over_is_answered_to_its_own_origin(served):
    """The heads of requests are remembered, but not those of pages."""
    with httpx.Client(base_url=served.url) as http:
        for _ in range(3):
            for origin in (NAMED, ALSO_NAMED, None):
                headers = {} if origin is None else from_page(origin)
                answer = http.post("/add/again", json={"data": [{"meta": 1}]}, headers=headers)
                assert answer.status_code == 200
                assert answer.headers.get("access-control-allow-origin") == origin


def test_a_request_that_names_no_origin_but_comes_from_another_site_is_kept_out(served):
    """As that of an image on a page of a named origin."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}

    assert httpx.get(f"{served.url}/get/x", headers=headers).status_code == 403


def test_our_own_pages_are_not_for_pages_of_other_origins(served):
    for method in ("GET", "POST", "OPTIONS"):
        answer = httpx.request(method, f"{served.url}/ui/", headers=from_page(NAMED))
        assert answer.status_code == 403
    assert preflight(served, "/ui/", NAMED).status_code == 403


def test_a_page_of_a_named_origin_opens_streams(served):
    with talking(served, origin=NAMED) as talk:
        assert talk.result(LOOK, []) == []
    with pytest.raises(InvalidStatus) as found, talking(served, origin=OTHER):
        pass
    assert found.value.response.status_code == 403


def test_a_preflight_needs_no_token_and_all_else_does(tmp_path):
    (tmp_path / "tokens").write_text(f"operator:ada:{TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    arguments = ("--cors-origins", NAMED, "--tokens-file", str(tmp_path / "tokens"))
    with serving(tmp_path, "--store", "memory", *arguments) as served:
        assert preflight(served, "/api/queues", NAMED, "GET").status_code == 204
        denied = httpx.get(f"{served.url}/api/queues", headers=from_page(NAMED))
        headers = {**from_page(NAMED), "Authorization": f"Bearer {TOKEN}"}
        let_in = httpx.get(f"{served.url}/api/queues", headers=headers)
        asked = httpx.options(f"{served.url}/api/queues", headers=from_page(NAMED))

    assert (denied.status_code, let_in.status_code, asked.status_code) == (401, 200, 401)
    assert denied.headers["access-control-allow-origin"] == NAMED  # so that the page can tell


def test_a_preflight_for_another_name_of_this_machine_is_refused(served):
    headers = {"Host": "evil.example", "Origin": NAMED, "Access-Control-Request-Method": "GET"}

    assert httpx.options(f"{served.url}/api/queues", headers=headers).status_code == 421


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/submit", "POST, OPTIONS"),
        ("/api/queues/x", "GET, PUT, DELETE, HEAD, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
        ("/get/q", "GET, POST, OPTIONS"),
    ],
)
def test_options_says_which_methods_a_path_has(served, path, allow):
    answer = httpx.options(served.url + path)

    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == allow
    assert "access-control-allow-origin" not in answer.headers


def test_options_of_a_path_that_is_not_there_is_not_found(served):
    assert httpx.options(f"{served.url}/nowhere").status_code == 404
