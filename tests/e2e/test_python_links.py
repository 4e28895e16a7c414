"""Connections of the Python client: silent ones, encrypted ones, several of them."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading

import pytest

from manyhands import App, Refused
from manyhands.client import link
from tests.e2e.cutting_proxy import cutting
from tests.e2e.serving import SECONDS_MAX


def declare_work(app: App, queue: str):
    @app.task(name=queue)
    def work(n: int) -> int:
        return n

    return work


def test_p30_a_silent_server_is_noticed_and_left(served, queue, monkeypatch):
    """P30, with shorter times: the proxy takes everything and passes nothing on."""
    assert (link._PING_SECONDS, link._SILENCE_SECONDS) == (10.0, 30.0)
    monkeypatch.setattr(link, "_PING_SECONDS", 0.5)
    monkeypatch.setattr(link, "_SILENCE_SECONDS", 2.0)
    with cutting(served.addresses["http"]) as (address, cuts):
        app = App(address, timeout=SECONDS_MAX)
        work = declare_work(app, queue)
        work.submit(1)
        cuts.swallow()

        handle = work.submit(2)  # over another connection

        assert cuts.connections_count >= 2
        assert app.handle(handle.id).cancel()
        app.close()


def test_p30_a_quiet_connection_is_kept_by_pings(served, queue, monkeypatch):
    monkeypatch.setattr(link, "_PING_SECONDS", 0.02)
    monkeypatch.setattr(link, "_SILENCE_SECONDS", SECONDS_MAX)
    with cutting(served.addresses["http"]) as (address, cuts):
        app = App(address, timeout=SECONDS_MAX)
        work = declare_work(app, queue)
        work.submit(1)
        before = cuts.seen["down"]
        while cuts.seen["down"] < before + 20:  # ten pongs
            threading.Event().wait(0.01)
        work.submit(2)

        assert cuts.connections_count == 1
        app.close()


def certified(folder) -> tuple[str, ssl.SSLContext]:
    """A certificate, and a server's side with it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", key, "-out", certificate, "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return str(certificate), context


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Encrypting:
    """TLS before a server."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._context = context
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> str:
        self._thread.start()
        assert self._ready.wait(SECONDS_MAX)
        return self.url

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._context)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _pass_on(self, reader, writer) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


@pytest.fixture
def encrypted(served, tmp_path):
    """The server behind TLS, with a certificate that nobody trusts by default."""
    certificate, context = certified(tmp_path)
    proxy = Encrypting(served.addresses["http"], context)
    yield proxy.start(), certificate
    proxy.stop()


def test_p34_encrypted_servers_are_trusted_by_their_authority(encrypted, queue):
    url, certificate = encrypted
    app = App(url, ca=certificate, timeout=SECONDS_MAX)
    handle = declare_work(app, queue).submit(1)

    assert handle.status().state == "ready"
    app.close()

    distrustful = App(url, timeout=SECONDS_MAX)
    with pytest.raises(Refused, match="ca=") as found:
        declare_work(distrustful, queue).submit(1)
    assert found.value.code == "untrusted_certificate"
    distrustful.close()
