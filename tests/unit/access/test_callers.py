"""Who is let in, as whom, and what a request may do."""

import base64
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials
from manyhands.access.file import callers_of, entry_of
from manyhands.access.logins import Failure
from manyhands.config import ConfigError, Token, load_config, read_tokens_file
from manyhands.model.roles import ANYBODY, Caller, Role
from manyhands.site.changes import Change, kind_of
from manyhands.site.document import APIS
from manyhands.web.admission import Admission
from manyhands.web.envelope import Problem

ADA = Token(Role.OPERATE, "ada", "4f2c9d1b7e3a5860")
WALL = Token(Role.READ, "wall", "9b1e7c3d5f2a4608")


def admission(*tokens: Token, read_only: bool = False) -> Admission:
    callers = Callers([entry_of(token) for token in tokens])

    def identify(shown, _protocol, then):
        then(callers.identify(shown) or Failure.WRONG)

    logins = SimpleNamespace(callers=callers, identify=identify)
    return Admission(logins, SimpleNamespace(), lambda: 0.0, read_only=read_only)


def caller(access: Admission, headers: dict[bytes, bytes], *, changes: bool = False) -> Caller:
    """Who may make a request with these headers. Raises a Problem."""
    found = []
    access.identify(headers, Credentials(), found.append)
    identified = found[0]()
    if changes:
        access.check_changing(identified)
    return identified


def basic(user: str, secret: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Basic " + base64.b64encode(f"{user}:{secret}".encode())}


def bearer(secret: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + secret.encode()}


def denied(
    access: Admission, headers: dict[bytes, bytes], *, changes: bool = False
) -> tuple[int, str]:
    with pytest.raises(Problem) as caught:
        caller(access, headers, changes=changes)
    return caught.value.status, caught.value.message


def test_without_tokens_nobody_is_asked():
    assert caller(admission(), {}, changes=True) == Caller("", Role.OPERATE)


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ADA.secret),
        {b"authorization": b"bearer  " + ADA.secret.encode()},
        basic("ada", ADA.secret),
        basic("", ADA.secret),
    ],
)
def test_a_token_tells_who_asks_as_bearer_or_as_a_password(headers):
    access = admission(ADA, WALL)

    assert caller(access, headers, changes=True) == Caller("ada", Role.OPERATE)
    assert caller(access, headers, changes=True) == Caller("ada", Role.OPERATE)  # and again


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("nobody's secret"),
        bearer(""),
        bearer(ADA.secret + "0"),
        basic("wall", ADA.secret),
        basic("ada", ""),
        {b"authorization": b"Basic ???"},
        {b"authorization": b"Basic /w=="},
        {b"authorization": b"Bearer \xff"},
        {b"authorization": b"Digest abc"},
        {b"authorization": b""},
    ],
)
def test_whoever_has_no_token_is_not_let_in_and_hears_a_sentence(headers):
    access = admission(ADA, WALL)

    status, sentence = denied(access, headers)

    assert status == 401
    assert "token" in sentence or "Bearer" in sentence
    assert ADA.secret not in sentence
    assert access.denied == {"unauthorized": 1, "forbidden": 0}


def test_who_may_only_look_may_not_change():
    access = admission(ADA, WALL)

    assert caller(access, bearer(WALL.secret)).name == "wall"
    assert denied(access, bearer(WALL.secret), changes=True) == (
        403,
        "wall has read-only access",
    )
    assert access.denied["forbidden"] == 1


def test_a_read_only_server_lets_nobody_change_anything():
    access = admission(ADA, read_only=True)

    assert caller(access, bearer(ADA.secret)).name == "ada"
    assert denied(access, bearer(ADA.secret), changes=True)[0] == 403
    assert denied(admission(read_only=True), {}, changes=True) == (
        403,
        "this server is read-only over HTTP",
    )


def test_health_is_told_to_everybody():
    assert admission(ADA).recognise({}, Credentials(), "/healthz") is ANYBODY


def test_a_name_with_another_ones_secret_is_nobody():
    callers = Callers([entry_of(ADA), entry_of(WALL)])

    def identify(user: str) -> Caller | None:
        return callers.identify(Credentials(user=user, password=ADA.secret))

    assert identify("ada") == identify("") == Caller("ada", Role.OPERATE)
    assert identify("wall") is None


# The configuration.


def test_tokens_come_from_the_environment_and_from_a_file_together(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# who may come in\nread-only:wall:9b1e7c3d5f2a4608\n\n")
    environ = {"MANYHANDS_TOKENS": "operator:ada:4f2c9d1b7e3a5860"}

    loaded = load_config({"tokens_file": str(file)}, environ, None)
    callers = callers_of(loaded.config, lambda: 0)

    assert callers.identify(Credentials(token=ADA.secret)) == Caller("ada", Role.OPERATE)
    assert callers.identify(Credentials(token=WALL.secret)) == Caller("wall", Role.READ)
    assert ADA.secret not in loaded.plain("tokens")
    assert loaded.plain("tokens") == "operator:ada:…"
    assert ADA.secret not in repr(loaded)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("boss:ada:4f2c9d1b7e3a5860", "the role of a token must be operator or read-only"),
        ("operator:a b:4f2c9d1b7e3a5860", "a token's name may only have letters"),
        ("operator:ada:short", "the secret of ada must have at least 16 characters"),
        ("operator:ada", "the secret of ada must have at least 16 characters"),
        ("operator:a:4f2c9d1b7e3a5860,operator:a:9b1e7c3d5f2a4608", "two tokens for a"),
        ("# nobody", "there is no token in it"),
    ],
)
def test_a_wrong_token_is_told_without_the_secret(tmp_path, text, sentence):
    file = tmp_path / "tokens"
    file.write_text(text)

    with pytest.raises(ConfigError) as in_file:
        read_tokens_file(file)
    with pytest.raises(ConfigError) as in_environment:
        load_config({}, {"MANYHANDS_TOKENS": text}, None)

    for caught in (in_file, in_environment):
        assert sentence in str(caught.value)
        assert "4f2c9d1b7e3a5860" not in str(caught.value)


def test_a_file_of_tokens_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_tokens_file(tmp_path / "nobody")


def test_http_may_be_reached_by_others_once_they_are_asked_who_they_are(tmp_path):
    load_config({"http": "0.0.0.0:80", "tokens_file": str(tmp_path / "t")}, {}, None)

    with pytest.raises(
        ConfigError, match=r"together with tokens_file or access .* or insecure = true"
    ):
        load_config({"http": "0.0.0.0:80"}, {}, None)
    with pytest.raises(ConfigError, match="gearman cannot be"):
        load_config({"gearman": "0.0.0.0:80", "tokens_file": str(tmp_path / "t")}, {}, None)


# What requests may do.


@pytest.mark.parametrize(
    ("request_line", "change"),
    [
        ("GET /api/jobs", Change.NONE),
        ("HEAD /queues", Change.NONE),
        ("GET /jobs", Change.NONE),
        ("GET /0.2.0/task/x/status", Change.NONE),
        ("GET /ui/queues", Change.NONE),
        ("GET /get/mail", Change.WORK),
        ("GET /get/mail/5", Change.WORK),
        ("GET /mail/5", Change.WORK),
        ("GET /a%2Fb/5", Change.WORK),
        ("HEAD /mail/5", Change.WORK),
        ("GET /0.2.0/claim-work/p/w", Change.WORK),
        ("GET /0.2.0/claim%2Dwork/p/w", Change.WORK),
        ("GET /0.2.0%2Fclaim-work/p/w", Change.WORK),
        ("HEAD /0.2.0/claim-work/p/w/", Change.WORK),
        ("POST /api/submit", Change.WORK),
        ("POST /complete/mail", Change.WORK),
        ("PUT /0.2.0/store/t/runs/0/a", Change.WORK),
        ("POST /0.2.0/task/t/cancel", Change.OPERATION),
        ("POST /0.2.0/task/t%2Fcancel", Change.OPERATION),
        ("POST /0.2.0/task/t/cancel/", Change.OPERATION),
        ("POST /0.2.0/task/t/cancel%2F", Change.OPERATION),
        ("POST /0.2.0/anything", Change.OPERATION),
        ("GET /api/stream", Change.WORK),
        ("POST /partial", Change.WORK),
        ("GET /queues/5", Change.NONE),
        ("GET /ui/5", Change.NONE),
        ("POST /api/cancel", Change.OPERATION),
        ("POST /api%2Fcancel", Change.OPERATION),
        ("POST /api/bulk", Change.OPERATION),
        ("DELETE /api/queues/q", Change.OPERATION),
        ("PUT /api/schedules/s", Change.OPERATION),
        ("POST /pause", Change.OPERATION),
        ("POST /ui/anything", Change.OPERATION),
        ("PATCH /", Change.OPERATION),
        ("GET /", Change.NONE),
        ("OPTIONS *", Change.NONE),
        ("POST *", Change.OPERATION),
    ],
)
def test_what_a_request_may_do_is_told_by_its_method_and_path(request_line, change):
    method, _, raw = request_line.partition(" ")

    assert kind_of(method, raw.encode(), unquote(raw)) is change


@pytest.mark.parametrize(
    "route",
    [route for api in APIS for route in api.routes],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_a_request_may_do_what_its_route_is_declared_to_do(route):
    path = route.path.replace("{count}", "5")
    unsafe = Change.WORK if route.work else Change.OPERATION

    found = kind_of(route.method, path.encode(), path)

    assert found is (Change.NONE if route.method == "GET" and not route.work else unsafe)
