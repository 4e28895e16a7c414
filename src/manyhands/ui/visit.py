"""One request for a page: parameters, appearance, and the proof that a form came from our pages."""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange, HungUpError

# How pages look, by what can be chosen; the first is usual.
VIEWS: Final = {
    "theme": ("system", "light", "dark"),
    "rows": ("compact", "comfortable"),
    "time": ("utc", "local"),
}
VIEW_COOKIE: Final = "manyhands_"  # followed by what was chosen
TOAST_COOKIE: Final = "manyhands_toast"
FORM_COOKIE: Final = "manyhands_form"
_FORM_BYTES_MAX: Final = 1024 * 1024
_FIELDS_MAX: Final = 5_000
_KEY_LENGTH: Final = 32


class Form:
    """The fields of a form. A name may occur several times, as checkboxes do."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def text(self, name: str, default: str = "") -> str:
        """The first value of a field, stripped."""
        return next((value for key, value in self._pairs if key == name), default).strip()

    def raw(self, name: str) -> str:
        """The same as it was sent: a name may well begin with a blank."""
        return next((value for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for key, value in self._pairs if key == name]

    @property
    def confirmed(self) -> bool:
        """Whether the question was confirmed."""
        return self.text("confirmed") == "yes"

    def items(self) -> Iterator[tuple[str, str]]:
        """Fields to send again with a confirmation."""
        return ((key, value) for key, value in self._pairs if key not in ("csrf", "confirmed"))


class Visit:
    """A request, read leniently: a page shows mistakes under the field."""

    def __init__(
        self, exchange: Exchange, dispatcher: Dispatcher, ids: Ids, rest: list[str]
    ) -> None:
        self.exchange = exchange
        self.dispatcher = dispatcher
        self._ids = ids
        self.rest = rest  # segments of the path after the page's name
        self.now = dispatcher.clock.now()
        self.problems: dict[str, str] = {}  # sentences, by the field they belong to
        self._query = _pairs(exchange.query_string.decode("ascii", "ignore"))
        self._came_from: str | None = None
        cookies = _cookies(exchange.headers.get(b"cookie", b""))
        self.view: dict[str, str] = {}
        for what, words in VIEWS.items():
            word = cookies.get(f"{VIEW_COOKIE}{what}", "")
            self.view[what] = word if word in words else words[0]
        self.toast = cookies.get(TOAST_COOKIE)
        key = cookies.get(FORM_COOKIE, "")
        self.is_new = len(key) != _KEY_LENGTH
        self.form_key = ids.token() if self.is_new else key
        # A refresh by script, or a part fetched by htmx, needs only the main block.
        self.is_part = b"hx-request" in exchange.headers
        # The number of rows already visible, which a quick search must not reduce.
        self.is_refresh = b"manyhands-refresh" in exchange.headers
        self.may_act = False  # until the caller is known

    def text(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self._query.get(name, default).strip()

    def raw(self, name: str) -> str | None:
        """The same as it was sent: a name may well begin with a blank."""
        return self._query.get(name)

    def whole(self, name: str, default: int | None = None, high: int = 1 << 62) -> int | None:
        """A whole number; anything else counts as not given."""
        found = self.text(name)
        if not (found.isascii() and found.isdigit() and len(found) <= 18):
            return default
        return min(int(found), high)

    def span_of(self, total: int, size: int) -> dict[str, int]:
        """The requested page of a list, for its pager; beyond the last one, the last."""
        last = max(1, -(-total // size))
        at = min(max(1, self.whole("page", 1) or 1), last)
        return {"at": at, "pages": last, "first": (at - 1) * size, "total": total}

    def chosen(self, name: str, among: tuple[str, ...]) -> str:
        """One of several words, or the first of them."""
        found = self.text(name)
        return found if found in among else among[0]

    @property
    def here(self) -> str:
        """The address of this page, for forms that come back to it."""
        if self._came_from is not None:
            return self._came_from
        query = self.exchange.query_string.decode("ascii", "ignore")
        path = self.exchange.raw_path.decode("ascii", "ignore")
        return f"{path}?{query}" if query else path

    @property
    def host(self) -> str:
        """The host that the visitor used for this server."""
        return self.exchange.headers.get(b"host", b"").decode("latin-1")

    def recall(self, place: str) -> None:
        """Restores the parameters of the page that a form came from."""
        self._came_from = place
        self._query = _pairs(place.partition("?")[2])

    # Forms.

    def csrf(self) -> str:
        """A token for our forms: different each time, so that the size of a compressed page reveals
        nothing. It needs no secret of the server, so it survives a restart.
        """
        salt = self._ids.token()
        return f"{salt}.{_proof(self.form_key, salt)}"

    async def form(self) -> Form:
        """The form, if it was sent from one of our pages."""
        kind = self.exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/x-www-form-urlencoded":
            raise Problem(
                415, "unsupported_media_type", "only forms of these pages are accepted here"
            )
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
            sentence = (
                "this form is not from this server, or too old; reload its page and try again"
            )
            raise Problem(403, "bad_form", sentence)
        return form


def back_to(form: Form, default: str) -> str:
    """The page that a form came from, if it is one of ours."""
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
    """Our cookies, among those of other programs on this host, which may look like anything."""
    pairs = (part.partition("=") for part in header.decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}
