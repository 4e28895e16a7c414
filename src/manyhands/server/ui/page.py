"""What a page is: something that shows, and that may act on what a form sends."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from msgspec import Struct

from manyhands.protocols.http_envelope import Problem

if TYPE_CHECKING:
    from manyhands.server.app import Server
    from manyhands.server.ui.visit import Form, Visit


class Shown(Struct, frozen=True):
    """What is to be rendered."""

    template: str
    values: dict[str, Any]
    title: str
    # What the page is about: a change of it refreshes the page. "any", "queue:<name>", "job:<id>",
    # or "" for a page that does not change by itself.
    topic: str = "any"
    status: int = 200


class File(Struct, frozen=True):
    """Bytes to be kept, never shown by a browser: they are somebody else's."""

    name: str  # plain letters, digits, dots and hyphens
    content: bytes


class Done(Struct, frozen=True):
    """An action was carried out: where to go on, and a sentence to show there."""

    to: str
    sentence: str
    failed: bool = False  # it went wrong, or part of it did


class Confirm(Struct, frozen=True):
    """An action wants to be asked for twice. The same form comes again with ``confirmed``."""

    question: str  # with the number of what it would change
    button: str
    fields: Sequence[tuple[str, str]]  # of the form, to be sent again
    back: str
    consequences: Sequence[str] = ()  # what will be different afterwards, a sentence each


class Page:
    """One page below ``/ui/``."""

    name: str  # its first segment; "" is the overview
    title: str

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.index = server.store.index

    async def show(self, visit: "Visit") -> Shown | File:
        """What to render."""
        raise NotImplementedError

    async def act(self, visit: "Visit", form: "Form") -> Done | Confirm | Shown:
        """Do what a form asks for. ``Shown``: the form has mistakes, and is shown with them."""
        del visit, form
        raise Problem(405, "method_not_allowed", "there is nothing to be done on this page")


def confirm_again(form: "Form", *, question: str, button: str, back: str) -> Confirm:
    """Ask before a form is carried out."""
    return Confirm(question, button, tuple(form.items()), back)


def url(path: str, **query: str | int | None) -> str:
    """A place below ``/ui/``. What is None or empty is left out."""
    given: Mapping[str, str | int] = {
        name: value for name, value in query.items() if value is not None and value != ""
    }
    return f"/ui/{path}" + (f"?{urlencode(given)}" if given else "")
