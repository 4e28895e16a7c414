"""Addresses where peers speak TLS, with real clients; certificates that are not accepted."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import warnings
from pathlib import Path

import httpx
import pika
import pytest
from websockets.sync.client import connect as connect_websocket

from manyhands import SyncClient
from tests.e2e.certificates import Authority
from tests.e2e.gearman_talk import GearmanTalk
from tests.e2e.serving import SECONDS_MAX, command, environment, run, serving, wait_until

CLIENTS = Path(__file__).parent / "clients"
ADDRESSES = ("--http-tls", "127.0.0.1:0", "--gearman-tls", "127.0.0.1:0")
MEMORY = ("--store", "memory")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_pair(authority):
    return authority.sign(
        "server", "IP:127.0.0.1,DNS:localhost,DNS:jobs.example,DNS:*.jobs.example"
    )


@pytest.fixture(scope="module")
def client_pair(authority):
    return authority.client("mailer", "/O=Example/CN=mailer")


@pytest.fixture(params=["uvloop", "asyncio"])
def served(request, tmp_path, server_pair):
    more = ("--gearman", "127.0.0.1:0", "--loop", request.param)
    with serving(tmp_path, *ADDRESSES, *server_pair.options, *MEMORY, *more) as server:
        yield server


@pytest.fixture
def demanding(tmp_path, authority, server_pair):
    """A server whose peers need a certificate."""
    ca = ("--tls-client-ca", str(authority.file))
    addresses = (*ADDRESSES, "--amqp-tls", "127.0.0.1:0")
    with serving(tmp_path, *addresses, *server_pair.options, *ca, *MEMORY) as server:
        yield server


def https(server) -> str:
    return f"https://{server.addresses['http_tls']}"


@contextlib.contextmanager
def talking(
    server,
    context: ssl.SSLContext,
    listener: str = "gearman_tls",
    name: str = "localhost",
    session: ssl.SSLSession | None = None,
):
    host, _, port = server.addresses[listener].rpartition(":")
    with (
        socket.create_connection((host, int(port)), SECONDS_MAX) as plain,
        context.wrap_socket(plain, server_hostname=name, session=session) as peer,
    ):
        yield peer


def asks_over_http(peer: ssl.SSLSocket) -> bool:
    peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return peer.recv(1000).startswith(b"HTTP/1.1 200 ")


def version_of(peer: ssl.SSLSocket) -> bytes:
    peer.sendall(b"version\n")
    return peer.recv(1000)


def is_turned_away(server, context: ssl.SSLContext, listener: str = "gearman_tls", **more) -> bool:
    """With TLS 1.3 a peer learns it only when it expects an answer."""
    try:
        with talking(server, context, listener, **more) as peer:
            return version_of(peer) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_http_is_served_with_and_without_tls_at_once(served, authority):
    with httpx.Client(verify=authority.context()) as client:
        submitted = client.post(f"{https(served)}/api/submit", json={"queue": "mail"})
        assert submitted.status_code == 200, submitted.text
        seen = httpx.get(f"{served.url}/api/queues").text

        pages = client.get(f"{https(served)}/ui/")

    assert '"mail"' in seen
    assert pages.status_code == 200
    assert served.addresses["http_tls"] in (served.folder / "stdout").read_text()


def test_a_command_says_what_is_wrong_with_tls(served, authority):
    no_tls = run("status", "--url", f"https://{served.addresses['http']}")
    not_trusted = run("status", "--url", https(served))
    trusted = subprocess.run(
        command("status", "--url", https(served)),
        env={**environment(), "MANYHANDS_CA": str(authority.file)},
        check=False,
        timeout=SECONDS_MAX,
    )

    assert "it does not speak TLS there; try http instead of https." in no_tls.stderr
    assert "its certificate is not trusted" in not_trusted.stderr
    assert "MANYHANDS_CA" in not_trusted.stderr
    assert trusted.returncode == 0


def test_large_bodies_arrive_and_leave_over_tls(served, authority):
    content = os.urandom(3 * 2**20).hex()
    with httpx.Client(verify=authority.context(), timeout=SECONDS_MAX) as client:
        job = {"queue": "large", "payload": content}
        assert client.post(f"{https(served)}/api/submit", json=job).is_success
        claimed = client.post(f"{https(served)}/api/claim", json={"queues": ["large"]}).text

    assert content in claimed


def test_curl_speaks_https_and_learns_who_it_speaks_with(served, authority):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    host, _, port = served.addresses["http_tls"].rpartition(":")
    named = ["--resolve", f"a.jobs.example:{port}:{host}", f"https://a.jobs.example:{port}/healthz"]

    trusted = ["curl", "-sS", "--cacert", str(authority.file), *named]
    found = subprocess.run(trusted, capture_output=True, text=True, timeout=240, check=False)
    strange = subprocess.run(["curl", "-sS", *named], capture_output=True, timeout=240, check=False)

    # Names in the certificate are names of this server.
    assert '"healthy":true' in found.stdout
    assert strange.returncode == 60  # the CA is not trusted


def test_a_stream_works_over_wss(served, authority):
    url = f"wss://{served.addresses['http_tls']}/api/stream"
    with connect_websocket(url, ssl=authority.context(), subprotocols=["manyhands.1"]) as socket_:
        assert socket_.subprotocol == "manyhands.1"


def test_gearman_packets_and_admin_lines_arrive_over_tls_and_beside_it(served, authority):
    with talking(served, authority.context()) as peer, GearmanTalk(served) as plain:
        assert version_of(peer).startswith(b"OK ")
        assert plain.is_alive()
    with talking(served, authority.context()) as peer:
        body = b"f\0\0" + b"x" * 300_000
        peer.sendall(b"\0REQ" + (18).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
        assert peer.recv(8) == b"\0RES\0\0\0\x08"  # JOB_CREATED


def test_a_version_of_tls_before_1_2_is_refused(served, authority):
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    for listener in ("http_tls", "gearman_tls"):
        assert is_turned_away(served, context, listener)
    wait_until(lambda: served.log().count("no version from TLS 1.2 on") == 2)


def test_a_peer_that_speaks_no_tls_is_disconnected_with_a_line_in_the_log(served):
    host, _, port = served.addresses["http_tls"].rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while peer.recv(1000):
                pass

    wait_until(lambda: "speaks HTTP without TLS" in served.log())
    metrics = httpx.get(f"{served.url}/metrics").text
    assert 'manyhands_tls_handshakes_total{listener="http",outcome="failed"} 1.0' in metrics
    assert "internal error" not in served.log()


def test_many_peers_that_only_connect_do_not_keep_others_out(served, authority):
    host, _, port = served.addresses["gearman_tls"].rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            stack.enter_context(socket.create_connection((host, int(port)), SECONDS_MAX))
        with talking(served, authority.context()) as peer:
            assert version_of(peer).startswith(b"OK ")
    log = served.log()
    assert "internal error" not in log
    assert "exception" not in log


def test_a_stop_ends_connections_and_handshakes_over_tls(served, authority):
    host, _, port = served.addresses["gearman_tls"].rpartition(":")
    with (
        socket.create_connection((host, int(port)), SECONDS_MAX),
        talking(served, authority.context()) as peer,
    ):
        assert version_of(peer).startswith(b"OK ")
        assert served.stop() == 0
        assert peer.recv(1) == b""


# Certificates of peers.


def test_peers_without_a_certificate_of_the_ca_are_refused_by_every_listener(
    demanding, authority, client_pair, tmp_path
):
    other = Authority(tmp_path, "somebody else")
    strangers = {
        "none": authority.context(),
        "expired": authority.context(authority.client("late", days=-1)),
        "other": authority.context(other.client("stranger")),
        "server": authority.context(authority.sign("a-server")),
    }
    for listener in ("http_tls", "gearman_tls", "amqp_tls"):
        for context in strangers.values():
            assert is_turned_away(demanding, context, listener)

    with talking(demanding, authority.context(client_pair)) as peer:
        assert version_of(peer).startswith(b"OK ")
    wait_until(lambda: "the peer has no certificate" in demanding.log())
    assert httpx.get(
        f"{https(demanding)}/healthz", verify=authority.context(client_pair)
    ).is_success


@pytest.mark.parametrize(
    ("why", "listener"),
    [
        ("certificate has expired", "http_tls"),
        ("unable to get local issuer certificate", "gearman_tls"),
        ("unsuitable certificate purpose", "gearman_tls"),
    ],
)
def test_the_log_says_why_the_certificate_of_a_peer_was_refused(
    demanding, authority, tmp_path, why, listener
):
    pair = {
        "certificate has expired": lambda: authority.client("late", days=-1),
        "unable to get local issuer certificate": lambda: Authority(tmp_path, "others").client("x"),
        "unsuitable certificate purpose": lambda: authority.sign("server-only"),
    }[why]()
    assert is_turned_away(demanding, authority.context(pair), listener)
    wait_until(lambda: why in demanding.log())


@pytest.mark.parametrize("flaw", ["expired", "other name", "other ca"])
def test_clients_refuse_a_server_whose_certificate_is_not_in_order(tmp_path, authority, flaw):
    signer = Authority(tmp_path, "others") if flaw == "other ca" else authority
    names = "DNS:elsewhere.example" if flaw == "other name" else "IP:127.0.0.1"
    pair = signer.sign("flawed", names, days=-1 if flaw == "expired" else 2)
    with serving(tmp_path, *ADDRESSES, *pair.options, *MEMORY) as server:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{https(server)}/healthz", verify=authority.context())
        assert is_turned_away(server, authority.context())
        assert ("the TLS certificate has expired" in server.log()) is (flaw == "expired")


# A new certificate.


def serial_of(server, authority, pair=None) -> str:
    with talking(server, authority.context(pair)) as peer:
        return peer.getpeercert()["serialNumber"]


@pytest.mark.parametrize("how", ["SIGHUP", "by itself"])
def test_a_new_certificate_is_used_without_dropping_connections(tmp_path, authority, how):
    pair = authority.sign(f"renewed-{how.replace(' ', '-')}")
    with serving(tmp_path, *ADDRESSES, *pair.options, *MEMORY) as server:
        before = serial_of(server, authority)
        with (
            talking(server, authority.context()) as peer,
            talking(server, authority.context(), "http_tls") as browser,
        ):
            assert version_of(peer).startswith(b"OK ")
            assert asks_over_http(browser)
            newer = authority.sign("newer", "DNS:localhost,DNS:new.example")
            shutil.copy(newer.certificate, pair.certificate)
            shutil.copy(newer.key, pair.key)
            if how == "SIGHUP":
                server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "the TLS files were loaded again" in server.log())

            assert serial_of(server, authority) != before
            assert version_of(peer).startswith(b"OK ")
            assert asks_over_http(browser)
        with httpx.Client(verify=authority.context()) as client:
            url = f"https://localhost:{server.addresses['http_tls'].rpartition(':')[2]}/healthz"
            assert client.get(url, headers={"host": "new.example"}).is_success


@pytest.mark.parametrize("flaw", ["garbage", "other key", "gone"])
def test_a_broken_new_certificate_leaves_the_old_one_in_use(tmp_path, authority, flaw):
    pair = authority.sign(f"kept-{flaw.replace(' ', '-')}")
    with serving(tmp_path, *ADDRESSES, *pair.options, *MEMORY) as server:
        before = serial_of(server, authority)
        if flaw == "garbage":
            pair.certificate.write_text("nothing")
        elif flaw == "other key":
            shutil.copy(authority.sign("another").certificate, pair.certificate)
        else:
            pair.key.unlink()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old ones stay" in server.log())

        assert serial_of(server, authority) == before


def test_a_client_ca_that_is_taken_away_keeps_its_peers_out_from_then_on(tmp_path, authority):
    others = Authority(tmp_path, "others")
    ca = tmp_path / "clients.pem"
    ca.write_text(authority.file.read_text() + others.file.read_text())
    pair, member = authority.sign("server-of-two"), others.client("member")
    options = (*ADDRESSES, *pair.options, "--tls-client-ca", str(ca), *MEMORY)
    with serving(tmp_path, *options) as server:
        with talking(server, authority.context(member)) as peer:
            assert version_of(peer).startswith(b"OK ")
        ca.write_text(authority.file.read_text())
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the TLS files were loaded again" in server.log())

        assert is_turned_away(server, authority.context(member))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_does_not_outlive_its_certificate(authority, tmp_path, version):
    own = Authority(tmp_path)
    ca = tmp_path / "clients.pem"
    ca.write_text(authority.file.read_text() + own.file.read_text())
    options = (*ADDRESSES, *authority.sign("own").options, "--tls-client-ca", str(ca), *MEMORY)
    with serving(tmp_path, *options) as server:
        context = authority.context(own.brief(own.client("brief"), seconds=5))
        context.maximum_version = version
        with talking(server, context) as peer:
            assert version_of(peer).startswith(b"OK ")
            session = peer.session
        with talking(server, context, session=session) as peer:
            assert peer.session_reused
            assert version_of(peer).startswith(b"OK ")
        wait_until(lambda: is_turned_away(server, context))

        assert is_turned_away(server, context, session=session)
        assert "has expired since it was accepted" in server.log()


# Clients of other people.


def test_perl_clients_and_workers_speak_gearman_over_tls(demanding, authority, client_pair):
    found = subprocess.run(
        ["perl", "-MGearman::Client", "-MIO::Socket::SSL", "-e", "1"],
        capture_output=True,
        timeout=240,
        check=False,
    )
    if found.returncode:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no Gearman for Perl")
    host, _, port = demanding.addresses["gearman_tls"].rpartition(":")
    files = [str(authority.file), str(client_pair.certificate), str(client_pair.key)]
    program = ["perl", str(CLIENTS / "peer_tls.pl")]
    with subprocess.Popen([*program, "work", host, port, *files, "upper"]) as worker:
        try:
            ran = subprocess.run(
                [*program, "run", host, port, *files, "upper", "over tls"],
                capture_output=True,
                text=True,
                timeout=240,
                check=True,
            )
            assert ran.stdout == "OVER TLS"
            assert worker.wait(SECONDS_MAX) == 0
        finally:
            worker.kill()


def test_openssl_itself_can_run_admin_commands(served, authority):
    address = served.addresses["gearman_tls"]
    trusting = ["-CAfile", str(authority.file), "-verify_return_error", "-verify_ip", "127.0.0.1"]
    with subprocess.Popen(
        ["openssl", "s_client", "-connect", address, "-quiet", *trusting],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as peer:
        try:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(b"version\n")
            peer.stdin.flush()
            assert peer.stdout.readline().startswith(b"OK ")
        finally:
            peer.kill()


def test_amqp_watchers_show_their_certificates(demanding, authority, client_pair):
    host, _, port = demanding.addresses["amqp_tls"].rpartition(":")

    def parameters(context: ssl.SSLContext) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            host, int(port), ssl_options=pika.SSLOptions(context, "localhost")
        )

    with pika.BlockingConnection(parameters(authority.context(client_pair))) as connection:
        connection.channel().queue_declare("mine", exclusive=True)
    with pytest.raises((pika.exceptions.AMQPError, ssl.SSLError, ConnectionError)):
        pika.BlockingConnection(parameters(authority.context()))


def test_an_address_for_tls_alone_serves_everything(tmp_path, authority, server_pair):
    options = ("--http", "off", *ADDRESSES, *server_pair.options, *MEMORY)
    with serving(tmp_path, *options) as server:
        assert server.addresses["http"] is None
        with httpx.Client(verify=authority.context()) as client:
            assert client.get(f"{https(server)}/readyz").is_success
            link = client.get(f"{https(server)}/0.2.0/asyncapi.json")
        assert link.status_code in (200, 404)
        pages = (server.folder / "stdout").read_text()

    assert f"pages\t{https(server)}/ui/" in pages


def test_a_slow_handshake_ends_in_time(served):
    """The peer sends the first half of its greeting, and stops."""
    host, _, port = served.addresses["gearman_tls"].rpartition(":")

    async def sit() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
        try:
            return await asyncio.wait_for(reader.read(), SECONDS_MAX)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    asyncio.run(sit())

    wait_until(lambda: "it took more than 10 s" in served.log())


# Our own clients.


def test_our_client_shows_its_certificate(demanding, authority, client_pair, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(client_pair.certificate.read_text() + client_pair.key.read_text())
    pair = (str(client_pair.certificate), str(client_pair.key))
    for cert in (pair, str(both)):
        client = SyncClient(https(demanding), ca=str(authority.file), cert=cert)
        with contextlib.closing(client):
            client.submit_raw("mail", b"x")
            assert [queue["name"] for queue in client.queues()] == ["mail"]


def run_with(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_our_commands_use_the_files_of_the_environment_or_of_a_profile(
    demanding, authority, client_pair, tmp_path
):
    files = {
        "ca": str(authority.file),
        "cert": str(client_pair.certificate),
        "key": str(client_pair.key),
    }
    at = {"MANYHANDS_URL": https(demanding)}
    variables = {f"MANYHANDS_{name.upper()}": file for name, file in files.items()}
    by_environment = run_with({**at, **variables}, "status")
    config = tmp_path / "config.toml"
    lines = [f"{name} = '{file}'" for name, file in files.items()]
    config.write_text("\n".join(["[profiles.here]", f"url = '{https(demanding)}'", *lines]))
    by_profile = run_with({"MANYHANDS_CONFIG": str(config)}, "status", "--profile", "here")
    distrustful = run_with(at, "status")
    broken = run_with({**at, "MANYHANDS_CA": str(client_pair.key)}, "status")

    assert by_environment.returncode == 0, by_environment.stderr
    assert by_profile.returncode == 0, by_profile.stderr
    assert distrustful.returncode != 0
    assert "certificate" in distrustful.stderr
    assert "cannot be used" in broken.stderr


def test_with_an_access_file_a_certificate_is_one_way_to_show_who_a_peer_is(
    tmp_path, authority, server_pair, client_pair
):
    file = tmp_path / "access.toml"
    listed = ("--role", "operate", "--certificate", "CN=mailer,O=Example", "--file", str(file))
    assert run("access", "new", "mailer", *listed).returncode == 0
    made = run("access", "new", "wall", "--role", "read", "--file", str(file))
    token = made.stdout.split()[-1]
    options = ("--tls-client-ca", str(authority.file), "--access", str(file))
    with serving(tmp_path, *ADDRESSES, *server_pair.options, *options, *MEMORY) as server:
        url = f"{https(server)}/api/queues"
        with httpx.Client(verify=authority.context(client_pair)) as client:
            assert client.get(url).status_code == 200
        with httpx.Client(verify=authority.context()) as client:
            assert client.get(url).status_code == 401
            shown = {"authorization": f"Bearer {token}"}
            assert client.get(url, headers=shown).status_code == 200
        with talking(server, authority.context(client_pair)) as peer:
            peer.sendall(b"status\n")
            assert peer.recv(1000) == b".\n"
        with talking(server, authority.context()) as peer:
            peer.sendall(b"status\n")
            assert peer.recv(1000).startswith(b"ERR NOT_ALLOWED")
        other = authority.context(Authority(tmp_path, "others").client("mailer"))
        assert is_turned_away(server, other)
        # One of the CA, for a name that no caller has.
        unknown = authority.context(authority.client("stranger", "/O=Example/CN=stranger"))
        with httpx.Client(verify=unknown) as client:
            assert client.get(url).status_code == 401
        with talking(server, unknown) as peer:
            peer.sendall(b"status\n")
            assert peer.recv(1000).startswith(b"ERR NOT_ALLOWED")
