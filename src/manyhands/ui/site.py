"""Everything below ``/ui/``: which page answers, how it is sent, and how errors are shown."""

import gzip
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec.structs import replace

from manyhands.access.credentials import Credentials
from manyhands.access.gate import guarded_by
from manyhands.loggers import get_logger
from manyhands.store.contract import StoreFailedError
from manyhands.store.sqlite.checksums import RecordDamagedError
from manyhands.ui.about import About
from manyhands.ui.assets import takes_gzip
from manyhands.ui.audit import Audit
from manyhands.ui.events import Events
from manyhands.ui.failures import FailuresPage
from manyhands.ui.find import Find
from manyhands.ui.job import JobPage
from manyhands.ui.jobs import Jobs
from manyhands.ui.limits import Limits
from manyhands.ui.live import Live
from manyhands.ui.operations import Operations
from manyhands.ui.overview import Overview
from manyhands.ui.page import Confirm, Done, File, Moved, Page, Shown
from manyhands.ui.queue import QueuePage
from manyhands.ui.queues import Queues
from manyhands.ui.schedules import Schedules
from manyhands.ui.servers import Servers
from manyhands.ui.tools import Tools
from manyhands.ui.visit import (
    FORM_COOKIE,
    TOAST_COOKIE,
    VIEW_COOKIE,
    VIEWS,
    Visit,
    back_to,
)
from manyhands.ui.worker import WorkerPage
from manyhands.ui.workers import Workers
from manyhands.web.admission import SESSION_COOKIE
from manyhands.web.envelope import Problem
from manyhands.web.exchange import Exchange, HungUpError, headers_of
from manyhands.web.naps import Naps
from manyhands.web.sources import Sources

_log = get_logger("manyhands.ui")

PAGES: Final[tuple[type[Page], ...]] = (
    Overview,
    Queues,
    QueuePage,
    Jobs,
    JobPage,
    FailuresPage,
    Find,
    Events,
    Workers,
    WorkerPage,
    Schedules,
    Limits,
    Operations,
    Audit,
    Servers,
    About,
)
# The navigation, in groups.
NAVIGATION: Final = (
    ("Work", ("", "queues", "jobs", "failures", "workers")),
    ("Rules", ("schedules", "limits")),
    ("Server", ("events", "bulk", "audit", "servers", "about")),
)
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    b" form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"vary", b"accept-encoding, hx-request"),
)
# Pages whose actions are not commands, which the gate would judge.
_OF_ALL_QUEUES: Final = ("bulk", "jobs", "failures", "servers")
_YEAR_SECONDS: Final = 365 * 24 * 3600
_PACKED_BYTES_MIN: Final = 1_400  # smaller answers fit into one packet anyway
_Headers = list[tuple[bytes, bytes]]


class Ui:
    """The pages."""

    def __init__(self, sources: Sources, naps: Naps) -> None:
        self._sources = sources
        self._tools = Tools()
        self._live = Live(sources.dispatcher, naps)
        self._pages = {page.name: page(sources) for page in PAGES}
        self._around = {
            "navigation": [
                (group, [(name, _TITLES[name]) for name in names]) for group, names in NAVIGATION
            ],
            "server_name": sources.config.server_name,
        }

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path belongs to the pages."""
        return path == "/ui" or path.startswith("/ui/")

    async def prepare(self) -> None:
        """Does what a visit would have to wait for, until it is cancelled."""
        await self._tools.prepare()
        await self._sources.attention.keep_counting()

    async def answer(self, exchange: Exchange) -> None:
        """Answers with a page, a file or a stream; an error is a page too."""
        if exchange.path == "/ui":
            await exchange.send_bytes(308, [(b"location", b"/ui/")], b"")
            return
        raw: str = exchange.raw_path.decode("ascii", "replace")
        parts = [unquote(part) for part in raw.removeprefix("/ui/").split("/")]
        if parts[0] == "static":
            await (await self._tools.assets()).answer(exchange, "/".join(parts[1:]))
            return
        visit = Visit(exchange, self._sources.dispatcher, self._sources.ids, parts[1:])
        try:
            if parts[0] in ("login", "logout"):
                await self._log_in_or_out(visit, parts[0])
                return
            near = exchange.connection.credentials(exchange.headers)
            exchange.caller = await self._sources.admission.identified(exchange.headers, near)
            admission = self._sources.admission
            if admission.asks:  # so that it is disconnected when its caller is removed
                exchange.connection.connection.caller = exchange.caller
            admission.check_reading(exchange.caller, exchange.path, limited=False)
            visit.may_act = admission.may_change(exchange.caller)
            with guarded_by(admission.guard(exchange.caller, exchange.address, "ui")):
                await self._serve(visit, parts[0])
        except HungUpError:
            raise
        except Problem as found:
            if found.status == 401 and self._wants_login(exchange):
                place = quote(visit.here, safe="/")
                location = f"/ui/login?back={place}".encode()
                await exchange.send_bytes(303, [(b"location", location)], b"")
            else:
                await self._fail(visit, found)
        except StoreFailedError as error:
            await self._fail(visit, Problem(503, "unavailable", str(error)))
        except RecordDamagedError as error:
            _log.error("a record is damaged", path=exchange.path, reason=str(error))
            await self._fail(visit, Problem(500, "damaged", str(error)))
        except Exception:  # noqa: BLE001 - our own defect; the visitor is informed, others go on
            request_id = self._sources.ids.token()[:16]
            _log.error("page failed", request_id=request_id, path=exchange.path, exc_info=True)
            sentence = f"an internal error; the server's log has it as {request_id}"
            await self._fail(visit, Problem(500, "internal", sentence))

    def _wants_login(self, exchange: Exchange) -> bool:
        """Whether a person without credentials looks at a page."""
        headers = exchange.headers
        return (
            self._sources.admission.has_login_page
            and exchange.method == "GET"
            and b"authorization" not in headers
            and b"text/html" in headers.get(b"accept", b"")
        )

    async def _log_in_or_out(self, visit: Visit, name: str) -> None:
        """The pages that need no credentials, since they take or drop them."""
        admission, exchange = self._sources.admission, visit.exchange
        visit.may_act = True  # there is nothing to change here
        values = {"back": _own_place(visit.text("back")), "wrong": False}
        if exchange.method in ("GET", "HEAD") and name == "login":
            await self._send(visit, Shown("login.html", values, "Log in", ""), "login")
            return
        if exchange.method != "POST":
            raise Problem(405, "method_not_allowed", f"{exchange.method} is not possible here")
        form = await visit.form()
        if name == "logout":
            admission.log_out(exchange.headers)
            cookie = f"{SESSION_COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
            await _redirect(visit, "/ui/login", cookie)
            return
        address = exchange.address
        user, secret = form.text("user"), form.raw("secret")
        shown = (
            Credentials(address=address, user=user, password=secret)
            if user
            else Credentials(address=address, token=secret.strip())
        )
        key = await admission.log_in(shown)
        if key is None:
            values = {"back": back_to(form, "/ui/"), "wrong": True}
            await self._send(visit, Shown("login.html", values, "Log in", "", 403), "login")
            return
        secure = "; Secure" if exchange.connection.connection.is_secure else ""
        cookie = f"{SESSION_COOKIE}={key}; Path=/; HttpOnly; SameSite=Strict{secure}"
        await _redirect(visit, back_to(form, "/ui/"), cookie)

    async def _serve(self, visit: Visit, name: str) -> None:
        method = visit.exchange.method
        if name == "live" and method == "GET":
            await self._live.watch(visit)
            return
        if name == "theme" and method == "POST":
            await self._set_view(visit)
            return
        page = self._pages.get(name)
        if page is None:
            raise Problem(404, "not_found", "there is no such page")
        if method in ("GET", "HEAD"):
            shown = await page.show(visit)
            if isinstance(shown, File):
                await _send_file(visit, shown)
            elif isinstance(shown, Moved):
                await visit.exchange.send_bytes(303, [(b"location", shown.to.encode())], b"")
            else:
                await self._send(visit, shown, page.name)
            return
        if method != "POST":
            raise Problem(405, "method_not_allowed", f"{method} is not possible here")
        found = await self._act(visit, page)
        if isinstance(found, Done):
            await self._go_on(visit, found)
        elif isinstance(found, Confirm):
            values = {"confirm": found, "action": visit.here}
            await self._send(visit, Shown("confirm.html", values, "Confirm", ""), page.name)
        else:  # it shows mistakes, which a refresh would remove
            await self._send(visit, replace(found, topic=""), page.name)

    async def _act(self, visit: Visit, page: Page) -> Done | Confirm | Shown:
        """Carries out a form, after the checks common to all forms, and records it in the audit
        log.
        """
        exchange = visit.exchange
        admission, audit = self._sources.admission, self._sources.audit
        caller = exchange.caller
        request = f"POST {exchange.path}"
        try:
            admission.check_changing(caller)
            if page.name in _OF_ALL_QUEUES:
                admission.check_operating(caller)
        except Problem as found:
            admission.record(found, caller, exchange.address, "ui", "operate", request)
            raise
        form = await visit.form()
        with audit.action(caller, exchange.address, "ui", request):
            return await page.act(visit, form)

    async def _set_view(self, visit: Visit) -> None:
        """Sets the theme, the height of rows, or how times are shown."""
        form = await visit.form()
        what, words = next(
            ((name, words) for name, words in VIEWS.items() if form.text(name)), ("theme", ())
        )
        word = form.text(what)
        if word not in words:
            known = ", ".join(VIEWS[what])
            raise Problem(400, "invalid_body", f"for {what} there is {known}")
        cookie = f"{VIEW_COOKIE}{what}={word}; Path=/ui/; Max-Age={_YEAR_SECONDS}; SameSite=Lax"
        place = back_to(form, "/ui/")
        headers = [(b"location", place.encode()), (b"set-cookie", cookie.encode())]
        await visit.exchange.send_bytes(303, headers, b"")

    # Sending.

    async def _send(self, visit: Visit, shown: Shown, page_name: str) -> None:
        exchange = visit.exchange
        around: dict[str, Any] = {
            **self._around,
            "page": page_name,
            "caller": exchange.caller,
            "has_session": self._sources.admission.has_session(exchange.headers),
            "toast": _read_toast(visit),
            "gearman": _gearman_options(
                self._sources.condition.addresses.get("gearman"), visit.host
            ),
        }
        body = (await self._tools.render(visit, shown, around)).encode("utf-8", "replace")
        headers: _Headers = list(_HEADERS)
        if visit.is_new:
            cookie = f"{FORM_COOKIE}={visit.form_key}; Path=/ui/; HttpOnly; SameSite=Strict"
            headers.append((b"set-cookie", cookie.encode()))
        if visit.toast is not None:
            headers.append((b"set-cookie", f"{TOAST_COOKIE}=; Path=/ui/; Max-Age=0".encode()))
        if len(body) >= _PACKED_BYTES_MIN and takes_gzip(exchange):
            body = gzip.compress(body, 1, mtime=0)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"server-timing", f"total;dur={exchange.elapsed_ms():.2f}".encode()))
        if exchange.connection.has_unread_body:
            headers.append((b"connection", b"close"))
        headers += headers_of(shown.status)
        await exchange.send_bytes(shown.status, headers, body)

    async def _fail(self, visit: Visit, found: Problem) -> None:
        values = {"problem": found}
        title = "Not found" if found.status == 404 else "Not possible"
        await self._send(visit, Shown("problem.html", values, title, "", found.status), "problem")

    async def _go_on(self, visit: Visit, done: Done) -> None:
        """Redirects to the page that shows the outcome. Without a script this is a plain redirect;
        with one, the browser follows it and swaps what it gets.
        """
        headers = [(b"location", done.to.encode())]
        if done.sentence:
            text = quote(("-" if done.failed else "+") + done.sentence[:1000], safe="")
            cookie = f"{TOAST_COOKIE}={text}; Path=/ui/; Max-Age=60; HttpOnly; SameSite=Strict"
            headers.append((b"set-cookie", cookie.encode()))
        await visit.exchange.send_bytes(303, headers, b"")


_TITLES: Final = {
    "": "Overview",
    "queues": "Queues",
    "jobs": "Jobs",
    "failures": "Failures",
    "workers": "Workers",
    "schedules": "Schedules",
    "limits": "Limits",
    "events": "Events",
    "bulk": "Operations",
    "audit": "Audit",
    "servers": "Servers",
    "about": "About",
}


def _own_place(place: str) -> str:
    return place if place.startswith("/ui/") and place.isprintable() else "/ui/"


async def _redirect(visit: Visit, place: str, cookie: str) -> None:
    headers = [(b"location", place.encode()), (b"set-cookie", cookie.encode())]
    await visit.exchange.send_bytes(303, headers, b"")


async def _send_file(visit: Visit, file: File) -> None:
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", f'attachment; filename="{file.name}"'.encode("ascii")),
        (b"content-security-policy", b"default-src 'none'; sandbox"),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    await visit.exchange.send_bytes(200, headers, file.content)


def _gearman_options(address: str | None, host: str) -> str | None:
    """Options for Gearman's command line client to find the listener; none for its default
    address.
    """
    if address is None:
        return None
    bound, _, port = address.partition(",")[0].rpartition(":")
    if bound.strip("[]") in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        bound = host.rpartition(":")[0] or host
    at = "" if bound in ("127.0.0.1", "localhost") else f" -h {bound.strip('[]')}"
    return at + ("" if port == "4730" else f" -p {port}")


def _read_toast(visit: Visit) -> tuple[bool, str] | None:
    """Whether the action succeeded, and the sentence."""
    if not visit.toast:
        return None
    text = unquote(visit.toast)
    return text[:1] != "-", text[1:]
