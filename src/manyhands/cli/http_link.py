"""The native API of a running server, for commands."""

import functools
import http.client
import inspect
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import urlencode, urlsplit

import msgspec
import typer

from manyhands.cli import suggestions
from manyhands.cli.profiles import DEFAULT_URL, Destination, destination
from manyhands.cli.stores import fail, misuse
from manyhands.config import PROFILE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE

_SECONDS = 60.0
_PANEL = "Server"
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--server",
        "-s",
        help=f"The server's HTTP address (default: {URL_VARIABLE}, then {DEFAULT_URL}).",
        metavar="URL",
        rich_help_panel=_PANEL,
    ),
]
TokenText = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="Token for a server that requires one; other users of this machine can see it.",
        metavar="TOKEN",
        rich_help_panel=_PANEL,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help=f"File with the token (default: {TOKEN_VARIABLE}).",
        metavar="FILE",
        rich_help_panel=_PANEL,
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help=f"Server and token of this name in the configuration file (default: "
        f"{PROFILE_VARIABLE}).",
        metavar="NAME",
        rich_help_panel=_PANEL,
        autocompletion=suggestions.profiles,
    ),
]
_FLAGS: dict[str, Any] = {
    "url": Url,
    "token": TokenText,
    "token_file": TokenFile,
    "profile": ProfileName,
}


class UnansweredError(Exception):
    """There was no answer, or not one of a manyhands server. Its text is a sentence."""

    nobody_listens = False  # at that address


class RefusedError(Exception):
    """The server refused. Its text is a sentence."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class HttpLink:
    """Requests to one server. ``ask`` raises; all others end the command with a sentence."""

    def __init__(self, place: Destination, seconds: float = _SECONDS) -> None:
        named = place.url
        try:
            url = urlsplit(named if "://" in named else f"http://{named}")
            port = url.port
        except ValueError:
            misuse(f"{named} is not the address of an HTTP server.")
        if url.scheme not in ("http", "https") or not url.hostname:
            misuse(f"{named} is not the address of an HTTP server.")
        self.place = place
        self.name = f"{url.scheme}://{url.netloc}"
        self.is_secure = url.scheme == "https"
        self._seconds = seconds
        self._connection: http.client.HTTPConnection
        if self.is_secure:
            try:
                context = place.trust.context()
            except OSError as error:
                fail(f"{error}.")
            self._connection = http.client.HTTPSConnection(
                url.hostname, port, timeout=seconds, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(url.hostname, port, timeout=seconds)
        self._headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
        if place.token is not None:
            self._headers["Authorization"] = f"Bearer {place.token}".encode()
        self._ahead_ms: int | None = None

    def twin(self) -> "HttpLink":
        """Another connection to the same server."""
        return HttpLink(self.place, self._seconds)

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 - whatever the API returns
        """The results of a query."""
        return self.page(path, **query)["results"]

    def page(self, path: str, **query: object) -> dict[str, Any]:
        """The results of a listing, and the cursor of the next page."""
        return self._or_fail("GET", path, None, query)

    def every(self, path: str, **query: object) -> list[Any]:
        """The results of all pages of a listing that is ordered by name."""
        found: list[Any] = []
        after: str | None = None
        while True:
            page = self.page(path, after=after, **query)
            found += page["results"]
            after = page.get("next")
            if after is None:
                return found

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        """The results of a command."""
        return self._or_fail("POST", path, body, {})["results"]

    def put(self, path: str, body: object) -> Any:  # noqa: ANN401
        """The results of a setting."""
        return self._or_fail("PUT", path, body, {})["results"]

    def delete(self, path: str) -> Any:  # noqa: ANN401
        """The results of a removal."""
        return self._or_fail("DELETE", path, None, {})["results"]

    def now(self) -> int:
        """The server's time, in milliseconds: this machine's clock may differ."""
        from manyhands.dispatch.clock import Clock

        if self._ahead_ms is None:
            self._ahead_ms = self.get("/api/me")["now"] - Clock().now()
        return Clock().now() + self._ahead_ms

    def _or_fail(
        self, method: str, path: str, body: object, query: Mapping[str, object]
    ) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self.ask(method, path, body, query)
        except (UnansweredError, RefusedError) as error:
            give_up(error)
        return answer

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        decode: Callable[[bytes], Any] = msgspec.json.decode,
    ) -> Any:  # noqa: ANN401 - what ``decode`` gives
        """The answer. Raises UnansweredError and RefusedError."""
        given = {key: value for key, value in (query or {}).items() if value is not None}
        whole = f"{path}?{urlencode(given)}" if given else path
        text = None if body is None else msgspec.json.encode(body)
        self._connection.timeout = seconds or self._seconds
        try:
            self._connection.request(method, whole, text, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            unanswered = UnansweredError(f"{self.name} does not answer: {_why(error)}.")
            unanswered.nobody_listens = isinstance(error, ConnectionRefusedError)
            raise unanswered from None
        finally:
            # A server closes an idle connection, for example while the user is being asked.
            self._connection.close()
        return self._read(response.status, data, decode)

    def _read(self, status: int, data: bytes, decode: Callable[[bytes], Any]) -> Any:  # noqa: ANN401
        stranger = UnansweredError(f"{self.name} is not a manyhands server.")
        try:
            answer = (decode if status == http.HTTPStatus.OK else msgspec.json.decode)(data)
        except msgspec.MsgspecError:
            raise stranger from None
        if isinstance(answer, dict) and "results" not in answer:
            raise stranger
        if status == http.HTTPStatus.OK or (
            isinstance(answer, dict) and answer["results"] is not None
        ):
            return answer
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            raise stranger
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise RefusedError(
                status,
                error["code"],
                f"{self.name} requires a valid token: use --token-file, {TOKEN_VARIABLE} or a "
                f"profile",
            )
        raise RefusedError(status, error["code"], error["message"].rstrip("."))

    def hang_up(self) -> None:
        """Closes the sending side, from any thread, while another one waits for an answer. The
        server gives back what it did not send; what it has sent can still be read.
        """
        connected = self._connection.sock
        if connected is not None and not self.is_secure:
            try:
                connected.shutdown(socket.SHUT_WR)
            except OSError:
                return  # it is closed already


def give_up(error: UnansweredError | RefusedError) -> NoReturn:
    """Ends the command with the sentence of an error."""
    if isinstance(error, RefusedError):
        fail(f"{error}.")
    start = " Start a server with `manyhands serve`, or name another one with --url."
    fail(f"{error}{start if error.nobody_listens else ''}")


def _why(error: Exception) -> str:
    """Why there was no answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); name the CA that signed it "
            f"with MANYHANDS_CA or in a profile"
        )
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return "it does not speak TLS there; try http instead of https"
        return reason.replace("_", " ").lower() or "TLS failed"
    if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
        return "it closed the connection; does it speak HTTP, or only https, there?"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags that name a server to a command, which gets ``link`` in their place."""
    own = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "link"
    ]

    @functools.wraps(command)
    def with_link(**given: Any) -> None:  # noqa: ANN401 - as the command declares
        flags = {name: given.pop(name) for name in _FLAGS}
        command(link=HttpLink(destination(**flags)), **given)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _FLAGS.items()
    ]
    # Typer reads its options from the signature.
    with_link.__dict__["__signature__"] = inspect.Signature([*own, *added])
    with_link.__annotations__ = {}
    return with_link
