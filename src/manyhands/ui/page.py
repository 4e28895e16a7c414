"""What a page is: something that is shown, and that may act on a form."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from msgspec import Struct

from manyhands.store.contract import Live
from manyhands.web.envelope import Problem
from manyhands.web.sources import Sources

if TYPE_CHECKING:
    from manyhands.ui.visit import Form, Visit


class Shown(Struct, frozen=True):
    """What to render."""

    template: str
    values: dict[str, Any]
    title: str
    # What the page is about: a change of it refreshes the page. "any", "queue:<name>", "job:<id>",
    # or "" for a page that does not change by itself.
    topic: str = "any"
    status: int = 200


class File(Struct, frozen=True):
    """Foreign bytes to download, never shown by a browser."""

    name: str  # plain letters, digits, dots and hyphens
    content: bytes


class Moved(Struct, frozen=True):
    """What was asked for has an address of its own."""

    to: str


class Done(Struct, frozen=True):
    """An action was carried out: the next page, and a sentence to show there."""

    to: str
    sentence: str
    failed: bool = False  # it went wrong, or part of it did


class Confirm(Struct, frozen=True):
    """An action needs a confirmation. The same form comes again with ``confirmed``."""

    question: str  # with the number of what it would change
    button: str
    fields: Sequence[tuple[str, str]]  # of the form, sent again
    back: str
    consequences: Sequence[str] = ()  # what will change, a sentence each


class Page:
    """One page below ``/ui/``."""

    name: str  # its first segment; "" is the overview
    title: str

    def __init__(self, sources: Sources) -> None:
        self._whole = sources

    @property
    def sources(self) -> Sources:
        """What the visitor may see."""
        return self._whole.of_caller

    @property
    def live(self) -> Live:
        """Unfinished jobs and settings, as far as the visitor may see them."""
        return self.sources.store.live

    async def show(self, visit: "Visit") -> Shown | File | Moved:
        """What to render."""
        raise NotImplementedError

    async def act(self, visit: "Visit", form: "Form") -> Done | Confirm | Shown:
        """Does what a form asks for. Returns ``Shown`` if the form has mistakes, to show it with
        them.
        """
        del visit, form
        raise Problem(405, "method_not_allowed", "this page has no actions")


def confirm_again(form: "Form", *, question: str, button: str, back: str) -> Confirm:
    """Asks before a form is carried out."""
    return Confirm(question, button, tuple(form.items()), back)


def url(path: str, **query: str | int | None) -> str:
    """An address below ``/ui/``. Empty parameters are left out."""
    given: Mapping[str, str | int] = {
        name: value for name, value in query.items() if value is not None and value != ""
    }
    return f"/ui/{path}" + (f"?{urlencode(given)}" if given else "")
