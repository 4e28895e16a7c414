"""TLS: the certificate of this server, and the addresses where peers speak TLS.

A `TlsDoor` brings peers to the listener of their protocol once the handshake is complete; from then
on they are served like all others. A handshake has a time limit, and only so many of them take
place at once.
"""

import asyncio
import contextlib
import errno
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from manyhands.config import Address
from manyhands.dispatch.clock import Clock
from manyhands.loggers import get_logger
from manyhands.net.tcp import BACKLOG, LINGER_SECONDS, TcpListener, cannot_listen
from manyhands.observe.repeats import Repeats

_log = get_logger("manyhands.tls")

HANDSHAKE_SECONDS: Final = 10.0
# Each takes some 50 KiB. If there are more, the oldest ends: a peer that means it takes
# milliseconds.
_HANDSHAKES_MAX: Final = 1_000
_ACCEPTS_MAX: Final = 32  # in one turn of the loop: other peers have theirs
_PAUSE_SECONDS: Final = 1.0  # before accepting again when no more files can be opened
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_WARN_MS: Final = 14 * 24 * 3600 * 1000  # before a certificate ends
_FIRST_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python has no name for

# What OpenSSL's words for the usual failures mean.
_REASONS: Final = {
    "HTTP_REQUEST": "the peer speaks HTTP without TLS",
    "HTTPS_PROXY_REQUEST": "the peer speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer speaks no version from TLS 1.2 on",
    "NO_SHARED_CIPHER": "the peer has no cipher in common with this server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this server's certificate has expired, says the peer",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept this server's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not know the CA of this server's certificate",
}


class Tls:
    """The certificate and key of this server, and the CA of its peers."""

    def __init__(
        self,
        clock: Clock,
        certificate: Path,
        key: Path,
        client_ca: Path | None,
        *,
        is_certificate_needed: bool,
    ) -> None:
        """With a CA, peers may show a certificate of it, or have to. Raises OSError with a sentence
        if the files cannot be used.
        """
        self._clock = clock
        self._is_certificate_needed = is_certificate_needed
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self.on_change: list[Callable[[], None]] = []  # called when there is another certificate
        self.context, self._shown = self._read()
        self._warn_of_end()
        self.counts: Counter[tuple[str, str]] = Counter()  # of handshakes, by listener and outcome

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that it is made from."""
        return tuple(filter(None, (self._certificate, self._key, self._client_ca)))

    def reload(self) -> None:
        """Reads the files again, for peers that connect from now on. If they cannot be used, the
        certificate stays as it is.
        """
        try:
            self.context, self._shown = self._read()
        except OSError as error:
            _log.error("the TLS files were not loaded again; the old ones stay", reason=str(error))
            return
        _log.info("the TLS files were loaded again", expires=self._shown.get("notAfter"))
        self._warn_of_end()
        for call in self.on_change:
            call()

    def _expires_at(self) -> int:
        """Milliseconds."""
        return int(ssl.cert_time_to_seconds(self._shown["notAfter"]) * 1000)

    def _warn_of_end(self) -> None:
        left_ms = self._expires_at() - self._clock.now()
        if left_ms < _WARN_MS:
            sentence = "has expired" if left_ms < 0 else "expires soon"
            file, when = str(self._certificate), self._shown["notAfter"]
            _log.warning(f"the TLS certificate {sentence}", file=file, expires=when)

    @property
    def names(self) -> frozenset[str]:
        """The names of hosts that the certificate is for; ``*.`` stands for one more part."""
        pairs = self._shown.get("subjectAltName", ())
        return frozenset(name for kind, name in pairs if kind in ("DNS", "IP Address"))

    def _read(self) -> tuple[ssl.SSLContext, dict[str, Any]]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # it lets a peer cause work at no cost
        try:
            # A key with a password would prompt for it on the terminal, and wait for ever.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except FileNotFoundError:
            missing = self._certificate if not self._certificate.exists() else self._key
            raise OSError(f"the TLS file {missing} does not exist") from None
        except OSError as error:
            files = f"{self._certificate} and {self._key}"
            raise OSError(f"{files} cannot be used for TLS: {_words_of(error)}") from None
        shown = _as_shown(context, self._certificate)
        if self._client_ca is not None:
            trust(context, self._client_ca)
            needed = self._is_certificate_needed
            context.verify_mode = ssl.CERT_REQUIRED if needed else ssl.CERT_OPTIONAL
        return context, shown

    def metrics(self) -> Iterable[Metric]:
        """The metrics of all handshakes."""
        handshakes = CounterMetricFamily(
            "manyhands_tls_handshakes",
            "TLS handshakes with peers.",
            labels=["listener", "outcome"],
        )
        for (listener, outcome), count in sorted(self.counts.items()):
            handshakes.add_metric([listener, outcome], count)
        yield handshakes
        yield GaugeMetricFamily(
            "manyhands_tls_certificate_expires_timestamp_seconds",
            "When the certificate of this server ends.",
            self._expires_at() / 1000,
        )


def _as_shown(context: ssl.SSLContext, file: Path) -> dict[str, Any]:
    """The certificate as peers see it, by a handshake in memory. Raises OSError with a sentence if
    it is none for a server.
    """
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname = False
    # Trusts this one certificate, whoever signed it and whenever it is valid.
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    first = _FIRST_PEM.search(file.read_text("latin-1"))
    if first is None:
        raise OSError(f"{file} cannot be used for TLS: its first certificate is not PEM")
    try:
        peer.load_verify_locations(cadata=first[0])
        to_peer, from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = context.wrap_bio(from_peer, to_peer, server_side=True)
        theirs = peer.wrap_bio(to_peer, from_peer)
        for _ in range(2):
            for side in (theirs, ours):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except OSError as error:
        reason = getattr(error, "verify_message", "") or _words_of(error)
        raise OSError(f"{file} cannot be used for TLS: {reason}") from None
    return theirs.getpeercert() or {}


def trust(context: ssl.SSLContext, file: Path) -> None:
    """Trusts the CA certificates of a file. Raises OSError with a sentence."""
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise OSError(f"the certificates in {file} cannot be used: {_words_of(error)}") from None


def client_context(ca: Path | None) -> ssl.SSLContext:
    """For connections to other servers, which must prove their names: with the CA certificates of a
    file, or with those of the system. Raises OSError with a sentence.
    """
    if ca is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trust(context, ca)
    return context


def _words_of(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


class TlsDoor:
    """An address where the peers of a listener speak TLS."""

    def __init__(self, listener: TcpListener, address: Address, tls: Tls) -> None:
        self.name = f"{listener.name} over TLS"
        self._listener = listener
        self._address = address
        self._tls = tls
        self._loop = listener.loop
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._repeats = Repeats(_log)

    async def start(self) -> str:
        """Binds and listens; returns the bound address. Raises OSError with a sentence."""
        try:
            await self._bind()
        except OSError as error:
            self._close()
            flag = f"--{self._listener.name}-tls"
            raise cannot_listen(self.name, flag, self._address, error) from None
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)
        host, port = self._sockets[0].getsockname()[:2]
        return str(Address(host, port))

    async def _bind(self) -> None:
        host, port = self._address.host, self._address.port
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, where in dict.fromkeys(found):
            dual = host == "::" and socket.has_dualstack_ipv6()
            listening = socket.create_server(
                where[:2], family=family, backlog=BACKLOG, dualstack_ipv6=dual
            )
            listening.setblocking(False)  # noqa: FBT003 - the socket's own signature
            self._sockets.append(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                peer, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._pause(listening, error)
                return
            peer.setblocking(False)  # noqa: FBT003 - the socket's own signature
            if len(self._handshakes) >= _HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            handshake = self._loop.create_task(self._shake_hands(peer, address[0]))
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._handshakes.pop)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._repeats.warn("no peers can be accepted", self.name, why=error.strerror)
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(_PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    async def _shake_hands(self, peer: socket.socket, address: str) -> None:
        outcome = "failed"
        try:
            await self._loop.connect_accepted_socket(
                self._listener.make_connection,
                peer,
                ssl=self._tls.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=LINGER_SECONDS,
            )
            outcome = "completed"
        except asyncio.CancelledError:
            outcome = "dropped"  # for a newer one, or because the server stops
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            outcome = "abandoned"  # as by a check whether the port is open
        except OSError as error:
            why = reason_of(error)
            self._repeats.warn("a TLS handshake failed", address, listener=self.name, why=why)
        finally:
            if outcome != "completed":
                peer.close()
            self._tls.counts[self._listener.name, outcome] += 1

    async def drain(self) -> None:
        """Accepts no more; peers that are connected belong to the listener."""
        self._close()
        for handshake in tuple(self._handshakes):
            handshake.cancel()
        if self._handshakes:
            await asyncio.wait(tuple(self._handshakes))

    def _close(self) -> None:
        for listening in self._sockets:
            with contextlib.suppress(ValueError, OSError):
                self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()


def reason_of(error: OSError) -> str:
    """Why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason, (error.reason or str(error)).lower().replace("_", " "))
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"it took more than {HANDSHAKE_SECONDS:.0f} s"
    return error.strerror or str(error)
