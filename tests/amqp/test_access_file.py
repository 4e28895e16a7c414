"""Watchers of a server with an access file: by password, by certificate, and by role."""

import asyncio
import ssl

import aio_pika
import httpx
import pika
import pytest

from manyhands.model.roles import RIGHTS, Right, Role
from tests.amqp.raw import UNDERSTANDS, amqplain, raw_client
from tests.e2e.certificates import Authority
from tests.e2e.serving import run, serving

SUBJECT = "/O=Example/CN=watcher"


def new(file, name: str, *more: str, given: str | None = None) -> str:
    made = run("access", "new", name, "--file", str(file), *more, input=given)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watchers")
    authority, file = Authority(folder), folder / "access.toml"
    tokens = {role.value: new(file, role.value, "--role", role) for role in Role}
    new(file, "eve", "--role", "read", "--password", given="a-password-of-eve\n")
    new(file, "certified", "--role", "read", "--certificate", "CN=watcher,O=Example")
    new(file, "hand", "--role", "work", "--certificate", "hand.example")
    pair = authority.sign("server")
    addresses = ("--amqp", "127.0.0.1:0", "--amqp-tls", "127.0.0.1:0")
    ca = ("--tls-client-ca", str(authority.file))
    with serving(folder, *addresses, *pair.options, *ca, "--access", str(file)) as served:
        yield served, tokens, authority


def connect(served, credentials, context: ssl.SSLContext | None = None) -> pika.BlockingConnection:
    host, _, port = served.addresses["amqp_tls" if context else "amqp"].rpartition(":")
    options = pika.SSLOptions(context, "localhost") if context else None
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, int(port), credentials=credentials, ssl_options=options)
    )


def watches(connection: pika.BlockingConnection) -> bool:
    with connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "task_pending_v1", "#")
        return True


REFUSED = pika.exceptions.ProbableAuthenticationError


@pytest.mark.parametrize("role", Role)
def test_only_callers_that_may_look_watch(world, role):
    served, tokens, _ = world
    credentials = pika.PlainCredentials(role.value, tokens[role])
    if Right.LOOK in RIGHTS[role]:
        assert watches(connect(served, credentials))
        return
    with pytest.raises(
        REFUSED, match=r"403.*Login was refused using authentication mechanism PLAIN"
    ):
        connect(served, credentials)
    headers = {"Authorization": f"Bearer {tokens['operate']}"}
    rows = httpx.get(f"{served.url}/api/audit?protocol=amqp", headers=headers).json()["results"]
    assert (role.value, "watch", "not_allowed") in {
        (row["who"], row["what"], row["refused"]) for row in rows
    }


@pytest.mark.parametrize(
    ("user", "password"),
    [("read", "wrong"), ("read", ""), ("", ""), ("guest", "guest"), ("u" * 3_000, "p" * 3_000)],
)
def test_wrong_empty_and_huge_credentials_are_refused(world, user, password):
    served, _, _ = world
    with pytest.raises(REFUSED, match="403"):
        connect(served, pika.PlainCredentials(user, password))


def test_the_token_of_another_caller_is_no_password(world):
    served, tokens, _ = world
    with pytest.raises(REFUSED, match="403"):
        connect(served, pika.PlainCredentials("read", tokens["operate"]))


def test_amqplain_carries_a_password_too(world):
    served, tokens, _ = world
    for password, is_right in ((tokens["read"], True), ("a-password", False)):
        with raw_client(served) as peer:
            peer.start()
            peer.log_in(amqplain("read", password), "AMQPLAIN", **UNDERSTANDS)
            if is_right:
                assert peer.hear()[1].name == "Connection.Tune"
            else:
                assert "AMQPLAIN" in peer.expect_close(403)


def test_a_certificate_is_enough_for_whoever_may_look(world):
    served, _, authority = world
    external = pika.credentials.ExternalCredentials()
    watcher = authority.context(authority.client("watcher", SUBJECT))
    hand = authority.context(authority.client("hand"))
    stranger = authority.context(authority.client("stranger"))

    assert watches(connect(served, external, watcher))
    for context in (hand, stranger):
        with pytest.raises(REFUSED, match=r"403.*EXTERNAL"):
            connect(served, external, context)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_whoever_shows_no_certificate_is_not_offered_to_come_by_one(world, is_encrypted):
    served, _, authority = world
    context = authority.context() if is_encrypted else None
    with pytest.raises(pika.exceptions.AuthenticationError, match="EXTERNAL"):
        connect(served, pika.credentials.ExternalCredentials(), context)


def test_aio_pika_logs_in_over_tls(world):
    served, _, authority = world
    url = f"amqps://eve:a-password-of-eve@{served.addresses['amqp_tls']}/"

    async def watch() -> str:
        async with await aio_pika.connect(url, ssl_context=authority.context()) as connection:
            channel = await connection.channel()
            return (await channel.declare_queue("", exclusive=True)).name

    assert asyncio.run(watch())
