"""Who may look, who may change: the pages hide what is not allowed, and the server refuses it."""

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.serving import serving
from tests.ui.looking import Looking

ACTIONS = {
    "queues": {"queue": "mail", "action": "pause"},
    "queue?name=mail": {"action": "settings", "attempts_max": "3"},
    "limits": {"action": "set", "name": "a", "max": "1"},
    "schedules": {"action": "put", "id": "a", "queue": "b", "when": "every 1 h"},
    "job/feed01": {"action": "priority", "priority": "3"},
    "jobs": {"action": "cancel", "all": "yes", "q": "queue:mail", "confirmed": "yes"},
    "workers": {"action": "depart", "realm": "native", "worker": "w", "confirmed": "yes"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text("operator:ops:sesame-of-the-ops\nread-only:wall:sesame-of-the-wall\n")
    tokens.chmod(0o600)
    with serving(folder, "--tokens-file", str(tokens)) as server:
        with as_(server, "ops") as http:
            body = {"queue": "mail", "payload": 1, "id": "feed01"}
            assert http.post("/api/submit", json=body).status_code == 200
        yield server


def as_(server, name: str | None) -> httpx.Client:
    auth = None if name is None else (name, f"sesame-of-the-{name}")
    return httpx.Client(base_url=server.url, auth=auth, timeout=120.0)


def form(http: httpx.Client, page: str, fields: dict[str, str]) -> httpx.Response:
    # Every page has the form of the theme, so every visitor has a proof.
    proof = re.search(r'name="csrf" value="([^"]+)"', http.get("/ui/queues").text)[1]
    return http.post(f"/ui/{page}", data={"csrf": proof, **fields})


def test_nobody_looks_without_a_token_and_is_asked_for_one(guarded):
    with as_(guarded, None) as http:
        answer = http.get("/ui/")

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert "requires a token" in answer.text
        assert http.get("/ui/live").status_code == 401
        assert http.get("/ui/static/ui.css").status_code == 200


@pytest.mark.parametrize("page", ACTIONS)
def test_who_may_only_look_is_shown_no_action_and_refused_every_one(guarded, page):
    with as_(guarded, "wall") as http:
        shown = http.get(f"/ui/{page}").text
        answer = form(http, page, ACTIONS[page])

    forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', shown)
    assert set(forms) == {"/ui/theme"}
    assert answer.status_code == 403
    assert "has read-only access" in answer.text
    with as_(guarded, "ops") as http:
        assert not http.get("/api/queues/mail").json()["results"]["paused"]
        assert http.get("/api/limits").json()["results"] == []


def test_who_may_only_look_may_choose_a_theme(guarded):
    with as_(guarded, "wall") as http:
        assert form(http, "theme", {"theme": "dark"}).status_code == 303


def test_an_operator_acts_and_is_named_in_the_audit_log(browser, guarded):
    credentials = {"username": "ops", "password": "sesame-of-the-ops"}
    window = Looking(browser, guarded.url, http_credentials=credentials)
    page = window.at("queues")
    window.button("Pause queue mail").click()
    expect(page.get_by_text("Queue mail is paused.")).to_be_visible()
    window.live()

    window.at("audit")

    expect(page.get_by_role("row").filter(has_text="set queue").first).to_contain_text("ops")
    window.at("queues")
    window.button("Resume queue mail").click()
    expect(page.get_by_text("Queue mail is resumed.")).to_be_visible()
    expect(window.button("Pause queue mail")).to_be_visible()
    window.close()


def test_a_reader_s_browser_has_no_buttons_but_is_live(browser, guarded):
    credentials = {"username": "wall", "password": "sesame-of-the-wall"}
    window = Looking(browser, guarded.url, http_credentials=credentials)
    page = window.at("queues")
    window.live()

    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Pause queue"))).to_have_count(0)
    window.close()


def test_a_server_may_be_read_only_for_everybody(tmp_path):
    with serving(tmp_path, "--read-only") as server, as_(server, None) as http:
        answer = form(http, "limits", ACTIONS["limits"])

        assert answer.status_code == 403
        assert "read-only" in answer.text
        assert http.get("/api/limits").json()["results"] == []
