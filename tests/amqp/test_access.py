"""Who may watch, and over what: accounts, TLS, and how many at a time."""

import asyncio
import os
import shutil
import ssl

import aio_pika
import httpx
import pika
import pytest
from pamqp.commands import Connection

from tests.amqp.rabbit import make_certificate
from tests.amqp.raw import UNDERSTANDS, amqplain, raw_client
from tests.amqp.watching import EXCHANGES, bind_all, collect_count, connect, run_jobs, until, url_of
from tests.e2e.serving import connections_count, run, serving


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    file = tmp_path_factory.mktemp("users") / "users"
    file.write_text("anna:s3cret\n")
    return file


@pytest.fixture(scope="module")
def served(tmp_path_factory, users):
    folder = tmp_path_factory.mktemp("served")
    options = ("--amqp", "127.0.0.1:0", "--amqp-users", str(users), "--store", "memory")
    with serving(folder, *options, "--amqp-connections-max", "3") as server:
        yield server


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", "\0anna\0s3cret"),
        ("AMQPLAIN", amqplain("anna", "s3cret")),
        ("PLAIN", "\0guest\0guest"),
    ],
)
def test_users_of_the_file_and_the_guest_of_this_machine_come_in(served, mechanism, response):
    """T16"""
    with raw_client(served) as raw:
        raw.start()
        raw.log_in(response, mechanism)
        raw.expect(Connection.Tune)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", "\0anna\0wrong"),
        ("PLAIN", "\0nobody\0s3cret"),
        ("AMQPLAIN", amqplain("anna", "guest")),
        ("AMQPLAIN", amqplain("nobody", "")),
    ],
)
def test_others_are_refused_with_403_and_a_sentence(served, mechanism, response):
    """T16"""
    with raw_client(served) as raw:
        raw.start()
        raw.log_in(response, mechanism, **UNDERSTANDS)
        assert "Login was refused using authentication mechanism" in raw.expect_close(403)

    metrics = httpx.get(f"{served.url}/metrics").text
    refused = next(
        line for line in metrics.splitlines() if line.startswith("manyhands_amqp_refused_logins_t")
    )
    assert float(refused.split()[1]) >= 1
    assert "s3cret" not in served.log()
    assert "a login was refused" in served.log()


def test_real_clients_hear_why_they_are_refused(served):
    with pytest.raises(pika.exceptions.AMQPConnectionError) as raised:
        connect(url_of(served).replace("guest:guest", "anna:wrong"))
    assert "403" in repr(raised.value)


def test_one_connection_too_many_is_refused_and_the_next_one_is_not(served):
    """T29"""
    place = served.addresses["amqp"]
    until(lambda: connections_count(place) == 0, "some of those before are still there")
    with connect(url_of(served)), connect(url_of(served)) as second, connect(url_of(served)):
        with raw_client(served) as raw:
            raw.start()
            raw.log_in()
            raw.expect(Connection.Tune)
            raw.say(Connection.TuneOk(0, 0, 0))
            raw.say(Connection.Open("/"))
            assert "3 connections already" in raw.expect_close(530)
        second.close()
        until(lambda: can_connect(url_of(served)), "a place that was free was not given")


def can_connect(url: str) -> bool:
    try:
        connect(url).close()
    except pika.exceptions.AMQPError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "sentence"), [(None, "cannot be read"), ("anna\n", "line 1 is not USER:PASSWORD")]
)
def test_a_wrong_file_of_users_ends_the_start_with_a_sentence(tmp_path, text, sentence):
    file = tmp_path / "users"
    if text is not None:
        file.write_text(text)
    listening = ("--http", "off", "--gearman", "off", "--dwork", "off", "--amqp", "127.0.0.1:0")

    ended = run("serve", "--store", "memory", *listening, "--amqp-users", str(file))

    assert ended.returncode == 1
    assert sentence in ended.stderr


def test_other_machines_may_be_listened_to_once_there_are_users(tmp_path, users):
    refused = run("serve", "--store", "memory", "--amqp", "0.0.0.0:0")
    assert refused.returncode != 0
    assert "without authentication" in refused.stderr

    listening = ("--amqp", "0.0.0.0:0", "--amqp-users", str(users), "--store", "memory")
    with serving(tmp_path, *listening) as server:
        port = server.addresses["amqp"].rpartition(":")[2]
        connect(f"amqp://anna:s3cret@127.0.0.1:{port}/").close()
        # Where to reach it is told without an account: those of the file are nobody else's.
        name = httpx.get(f"{server.url}/api/about").json()["results"]["server_name"]
        assert told_url(server) == f"amqp://{name}:{port}/"


def told_url(server) -> str:
    """T37"""
    return httpx.get(f"{server.url}/0.2.0/settings/amqp-connection-string").json()["url"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        reason = "openssl is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(params=["uvloop", "asyncio"])
def over_tls(request, tmp_path, certificate):
    pem, key = map(str, certificate)
    tls = ("--amqp-tls", "127.0.0.1:0", "--tls-cert", pem, "--tls-key", key)
    with serving(tmp_path, *tls, "--store", "memory", "--loop", request.param) as server:
        yield server


def trusting(certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate[0])


def connect_over_tls(server, context: ssl.SSLContext) -> pika.BlockingConnection:
    url = f"amqps://guest:guest@{server.addresses['amqp_tls']}/"
    return connect(url, ssl_options=pika.SSLOptions(context, "localhost"))


def test_watchers_come_over_tls(over_tls, certificate):
    """T37, T43"""
    host, port = over_tls.addresses["amqp_tls"].split(":")
    assert told_url(over_tls) == f"amqps://guest:guest@{host}:{port}/"
    with connect_over_tls(over_tls, trusting(certificate)) as connection:
        channel = connection.channel()
        name = bind_all(channel)
        run_jobs(over_tls, "secret", 500)
        found = collect_count(channel, name, 1_500)
    assert [int(p.message_id) for _, p, _ in found] == list(range(1, 1_501))

    async def listen() -> str:
        url = f"amqps://guest:guest@{host}:{port}/"
        async with await aio_pika.connect(url, ssl_context=trusting(certificate)) as link:
            opened = await link.channel()
            queue = await opened.declare_queue(exclusive=True)
            exchange = await opened.get_exchange("task_pending_v1")
            await queue.bind(exchange, "#")
            await asyncio.to_thread(run_jobs, over_tls, "other", 1)
            async with queue.iterator(no_ack=True) as messages:
                return (await anext(aiter(messages))).routing_key

    assert ".default.other." in asyncio.run(asyncio.wait_for(listen(), 120))


def test_a_peer_that_speaks_no_tls_or_trusts_somebody_else_is_let_go(over_tls, certificate):
    """T43"""
    host, port = over_tls.addresses["amqp_tls"].split(":")
    with pytest.raises(pika.exceptions.AMQPError):
        connect(f"amqp://{host}:{port}/", socket_timeout=5)
    with pytest.raises(ssl.SSLCertVerificationError):
        connect_over_tls(over_tls, ssl.create_default_context())
    # And nobody else notices.
    connect_over_tls(over_tls, trusting(certificate)).close()
    assert "internal error" not in over_tls.log()


def test_one_broker_is_behind_both_listeners(tmp_path, certificate):
    pem, key = map(str, certificate)
    options = ("--amqp", "127.0.0.1:0", "--amqp-tls", "127.0.0.1:0", "--store", "memory")
    with serving(tmp_path, *options, "--tls-cert", pem, "--tls-key", key) as server:
        with connect(url_of(server)) as connection:
            connection.channel().queue_declare("kept", durable=True)
        with connect_over_tls(server, trusting(certificate)) as connection:
            connection.channel().queue_declare("kept", passive=True)


@pytest.mark.parametrize("what", ["missing", "no key", "wrong key"])
def test_tls_without_what_it_needs_ends_the_start_with_a_sentence(tmp_path, certificate, what):
    pem, key = certificate
    if what == "missing":
        pem = tmp_path / "nothing"
    if what == "wrong key":
        _, key = make_certificate(tmp_path)
    options = ["--amqp-tls", "127.0.0.1:0", "--tls-cert", str(pem)]
    if what != "no key":
        options += ["--tls-key", str(key)]
    for other in ("http", "gearman", "dwork", "amqp"):
        options += [f"--{other}", "off"]

    ended = run("serve", "--store", "memory", *options)

    sentence = {
        "missing": "does not exist",
        "no key": "TLS needs a certificate and its key",
        "wrong key": "cannot be used for TLS",
    }
    assert ended.returncode != 0
    assert sentence[what] in ended.stderr


def test_events_are_relayed_over_tls(rabbit, tmp_path):
    """T43"""
    with connect(rabbit.url) as connection:
        channel = connection.channel()
        for exchange in EXCHANGES:
            channel.exchange_delete(exchange)
        channel.queue_delete("secret")
        bind_all(channel, "secret", durable=True)
        options = ("--amqp-relay", rabbit.tls_url, "--amqp-relay-ca", str(rabbit.certificate))
        with serving(tmp_path, *options) as server:
            run_jobs(server, "relayed", 300)
            found = collect_count(channel, "secret", 900)

    assert [int(p.message_id) for _, p, _ in found] == list(range(1, 901))


def test_a_broker_that_nobody_vouches_for_is_not_told_anything(rabbit, tmp_path):
    """T43"""
    with serving(tmp_path, "--amqp-relay", rabbit.tls_url) as server:
        run_jobs(server, "relayed", 5)
        until(lambda: "no broker to relay to" in server.log(), "nothing was said")
        assert "manyhands_relay_connected 0.0" in httpx.get(f"{server.url}/metrics").text

    assert "certificate verify failed" in server.log().lower()


def test_a_wrong_file_of_certificates_ends_the_start_with_a_sentence(tmp_path):
    file = tmp_path / "ca"
    file.write_text("nothing")
    options = ("--amqp-relay", "amqps://127.0.0.1:1/", "--amqp-relay-ca", str(file))
    for other in ("http", "gearman", "dwork", "amqp"):
        options += (f"--{other}", "off")

    ended = run("serve", "--store", "memory", *options)

    assert ended.returncode == 1
    assert "cannot be used" in ended.stderr
