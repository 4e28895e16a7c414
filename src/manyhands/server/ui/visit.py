"""One request for a page: what was asked, how it is to look, and the proof that a form is ours."""

import hashlib
import hmac
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from manyhands.protocols.http_envelope import Problem
from manyhands.server.http_exchange import Exchange, HungUpError

if TYPE_CHECKING:
    from manyhands.server.app import Server

THEMES: Final = ("system", "light", "dark")
THEME_COOKIE: Final = "manyhands_theme"
TOAST_COOKIE: Final = "manyhands_toast"
FORM_COOKIE: Final = "manyhands_form"
_FORM_BYTES_MAX: Final = 1024 * 1024
_FIELDS_MAX: Final = 5_000
_KEY_LENGTH: Final = 32


class Form:
    """What a form sent. A name may come several times, as checkboxes do."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def text(self, name: str, default: str = "") -> str:
        """The first value of a field, without blanks around it."""
        return next((value for key, value in self._pairs if key == name), default).strip()

    def raw(self, name: str) -> str:
        """The same as it was sent: a name may well begin with a blank."""
        return next((value for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for key, value in self._pairs if key == name]

    @property
    def confirmed(self) -> bool:
        """Whether the question was answered with yes."""
        return self.text("confirmed") == "yes"

    def items(self) -> Iterator[tuple[str, str]]:
        """Fields to be sent again with a confirmation."""
        return ((key, value) for key, value in self._pairs if key not in ("csrf", "confirmed"))


class Visit:
    """A request, read leniently: a page shows what is wrong with it under the field."""

    def __init__(self, exchange: Exchange, server: "Server", rest: list[str]) -> None:
        self.exchange = exchange
        self.server = server
        self.rest = rest  # segments of the path behind the page's name
        self.now = server.clock.now()
        self.problems: dict[str, str] = {}  # sentences, by the field they belong to
        self._query = _pairs(exchange.scope["query_string"].decode("ascii", "ignore"))
        self._came_from: str | None = None
        cookies = _cookies(exchange.headers.get(b"cookie", b""))
        theme = cookies.get(THEME_COOKIE, "system")
        self.theme = theme if theme in THEMES else "system"
        self.toast = cookies.get(TOAST_COOKIE)
        key = cookies.get(FORM_COOKIE, "")
        self.is_new = len(key) != _KEY_LENGTH
        self.form_key = server.ids.token() if self.is_new else key
        # A refresh by script, or a part fetched by htmx: only the main block is wanted.
        self.is_part = b"hx-request" in exchange.headers
        # Of what somebody sees already, and would lose if less was found in a hurry.
        self.is_refresh = b"manyhands-refresh" in exchange.headers
        self.may_act = False  # until it is known who looks

    def text(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self._query.get(name, default).strip()

    def raw(self, name: str) -> str | None:
        """The same as it was sent: a name may well begin with a blank."""
        return self._query.get(name)

    def whole(self, name: str, default: int | None = None, high: int = 1 << 62) -> int | None:
        """A whole number; what is none counts as not given."""
        found = self.text(name)
        if not (found.isascii() and found.isdigit() and len(found) <= 18):
            return default
        return min(int(found), high)

    def span_of(self, total: int, size: int) -> dict[str, int]:
        """Which page of a list is asked for, for its pager; beyond the last one that is it."""
        last = max(1, -(-total // size))
        at = min(max(1, self.whole("page", 1) or 1), last)
        return {"at": at, "pages": last, "first": (at - 1) * size, "total": total}

    def chosen(self, name: str, among: tuple[str, ...]) -> str:
        """One of several words, the first if it is none of them."""
        found = self.text(name)
        return found if found in among else among[0]

    @property
    def here(self) -> str:
        """The address of this page, for forms that come back to it."""
        if self._came_from is not None:
            return self._came_from
        query = self.exchange.scope["query_string"].decode("ascii", "ignore")
        path = self.exchange.scope["raw_path"].decode("ascii", "ignore")
        return f"{path}?{query}" if query else path

    @property
    def host(self) -> str:
        """This server as the visitor calls it."""
        return self.exchange.headers.get(b"host", b"").decode("latin-1")

    def recall(self, place: str) -> None:
        """Show the page that a form came from once more, as it was asked for then."""
        self._came_from = place
        self._query = _pairs(place.partition("?")[2])

    # Forms.

    def csrf(self) -> str:
        """A proof for a form of ours: another one each time, so that packing a page tells nothing
        about it. It needs no secret of the server and so outlives a restart.
        """
        salt = self.server.ids.token()
        return f"{salt}.{_proof(self.form_key, salt)}"

    async def form(self) -> Form:
        """What was sent, if it was sent by a page of ours."""
        kind = self.exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/x-www-form-urlencoded":
            raise Problem(415, "unsupported_media_type", "only forms of these pages are read here")
        gathered = bytearray()
        async for piece in self.exchange.pieces():
            gathered += piece
            if len(gathered) > _FORM_BYTES_MAX:
                raise Problem(413, "too_large", f"a form may have {_FORM_BYTES_MAX} bytes")
        if self.exchange.connection.is_gone:
            raise HungUpError
        try:
            pairs = parse_qsl(
                gathered.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_MAX
            )
        except ValueError:
            raise Problem(400, "invalid_body", "the form cannot be read") from None
        form = Form([(name, value.replace("\r\n", "\n")) for name, value in pairs])
        salt, _, proof = form.text("csrf").partition(".")
        ours = hmac.compare_digest(proof.encode(), _proof(self.form_key, salt).encode())
        if self.is_new or not ours:
            sentence = "this form is not one of ours, or too old; reload its page and try again"
            raise Problem(403, "bad_form", sentence)
        return form


def back_to(form: Form, default: str) -> str:
    """The page that a form came from, if it names one of ours."""
    place = form.text("back")
    return place if place.startswith("/ui/") and place.isprintable() else default


def _proof(key: str, salt: str) -> str:
    return hmac.new(key.encode(), salt.encode(), hashlib.sha256).hexdigest()


def _pairs(query_string: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query_string, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return {}


def _cookies(header: bytes) -> dict[str, str]:
    """Ours among those of others on this host, which may look like anything."""
    pairs = (part.partition("=") for part in header.decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}
