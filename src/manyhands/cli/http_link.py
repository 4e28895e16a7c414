"""The native API of a running server, for the operator's commands."""

import http.client
import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer

from manyhands.cli.stores import fail
from manyhands.config import TOKEN_VARIABLE, URL_VARIABLE

_SECONDS = 60.0
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        help=f"The server's HTTP address (default: {URL_VARIABLE}, then http://127.0.0.1:7700).",
        metavar="URL",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help=f"File with the token for a server that requires one (default: {TOKEN_VARIABLE}).",
        metavar="FILE",
    ),
]
DEFAULT_URL = "http://127.0.0.1:7700"


class HttpLink:
    """Requests to one server. An error ends the command with a sentence."""

    def __init__(self, server: str | None, token_file: Path | None) -> None:
        named = server or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        try:
            url = urlsplit(named if "://" in named else f"http://{named}")
            port = url.port
        except ValueError:
            fail(f"{named} is not the address of an HTTP server.")
        if url.scheme not in ("http", "https") or not url.hostname:
            fail(f"{named} is not the address of an HTTP server.")
        self._name = f"{url.scheme}://{url.netloc}"
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(url.hostname, port, timeout=_SECONDS)
        self._headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
        token = _token(token_file)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}".encode()

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever the API returns
        """The results of a query."""
        return self._ask("GET", path, None)["results"]

    def page(self, path: str) -> dict[str, Any]:
        """The results of a listing, and the cursor of the next page."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401
        """The results of a command."""
        return self._ask("POST", path, msgspec.json.encode(body))["results"]

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        try:
            self._connection.request(method, path, body, self._headers)
            response = self._connection.getresponse()
            answer = msgspec.json.decode(response.read())
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            fail(f"{self._name} does not answer: {reason}.")
        except msgspec.DecodeError:
            fail(f"{self._name} is not a manyhands server.")
        finally:
            # A server closes an idle connection, for example while the user is being asked.
            self._connection.close()
        if not isinstance(answer, dict) or "results" not in answer:
            fail(f"{self._name} is not a manyhands server.")
        if answer.get("error"):
            fail(f"{answer['error']['message']}.")
        return answer


def _token(file: Path | None) -> str | None:
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
    else:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            fail(f"file {file} cannot be read: {reason}.")
    if not token.isprintable():
        fail("a token is one line of printable characters.")
    return token or None
