"""Templates, and the words and drawings that they may use."""

import functools
import gc
import hashlib
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from manyhands import __version__
from manyhands.model.job import FINISHED, State
from manyhands.model.policy import REALMS
from manyhands.ui import drawings, words
from manyhands.ui.assets import Assets
from manyhands.ui.page import Shown, url
from manyhands.ui.query import quoted, state_word
from manyhands.ui.visit import Visit

_FOLDER: Final = Path(__file__).parent / "templates"
# So many objects may wait for the garbage collector when a page has been made.
_YOUNG_MAX: Final = 5_000


class Renderer:
    """Makes HTML."""

    def __init__(self, assets: Assets) -> None:
        self._environment = environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
            auto_reload=False,
            cache_size=-1,
        )
        environment.filters.update(
            duration=words.duration,
            number=words.number,
            compact=words.compact,
            size=words.size,
            shown=words.shown,
            visible=words.visible,
            instant=words.instant,
            clock=words.clock,
            anchor=anchor,
            running=state_word,
            protocol=lambda realm: REALMS[realm].label if realm in REALMS else realm,
        )
        environment.globals.update(
            asset=assets.url,
            url=url,
            plural=words.plural,
            state_bar=drawings.state_bar,
            sparkline=drawings.sparkline,
            histogram=drawings.histogram,
            when=when,
            exact=exact,
            clock=clock,
            named=named,
            quoted=quoted,
            lines=functools.partial(words.visible, lines=True),
            states=tuple(State),
            finished=FINISHED,
            version=__version__,
        )
        self._prepared: set[str] = set()
        for name in ("layout.html", "part.html", "parts.html", "problem.html"):
            self.prepare(name)

    def names(self) -> list[str]:
        """All templates."""
        return sorted(file.name for file in _FOLDER.glob("*.html"))

    def is_prepared(self, name: str) -> bool:
        """Whether a template can be rendered at once."""
        return name in self._prepared

    def prepare(self, name: str) -> None:
        """Compiles a template, which takes longer than rendering it: call this in a thread."""
        self._environment.get_template(name)
        self._prepared.add(name)

    def render(self, visit: Visit, shown: Shown, around: dict[str, Any]) -> str:
        """The whole page, or its main block for a script that refreshes it."""
        template = self._environment.get_template(shown.template)
        values = {
            "visit": visit,
            "now": visit.now,
            "csrf": visit.csrf,
            "problems": visit.problems,
            "may_act": visit.may_act,
            "title": shown.title,
            "topic": shown.topic,
            **around,
            **shown.values,
        }
        values["layout"] = "part.html" if visit.is_part else "layout.html"
        text = template.render(values)
        # Templates and the macros that they import refer to each other. The collector of a server
        # looks rarely, and so would find the cycles of hundreds of pages in one long pause.
        if gc.get_count()[0] > _YOUNG_MAX:
            gc.collect(0)
        return text


def anchor(text: str) -> str:
    """An element id for a name with any characters."""
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@pass_context
def when(context: Context, at: int | None) -> Markup:
    """An instant relative to now, with the exact instant as its title."""
    if at is None:
        return Markup(words.NOTHING)  # noqa: S704
    return _time(at, words.ago(at, context["now"]))


def exact(at: int | None) -> Markup:
    """An instant to the second. A script shows it in local time to those who want that."""
    return Markup(words.NOTHING) if at is None else _time(at, words.instant(at), "instant")  # noqa: S704


def clock(at: int) -> Markup:
    """The time of day, to the millisecond; the same holds for it."""
    return _time(at, words.clock(at), "clock")


def _time(at: int, shown: str, form: str = "") -> Markup:
    title = words.instant(at)
    day = title.removesuffix(" UTC").replace(" ", "T")
    kind = f' data-form="{form}"' if form else ""
    # Only digits and fixed words: nothing to escape, and this is rendered hundreds of times.
    return Markup(  # noqa: S704
        f'<time datetime="{day}.{at % 1000:03d}Z" title="{title}"{kind}>{shown}</time>'
    )


def named(text: str, length: int = words.NAME_LENGTH) -> Markup:
    """A foreign name: hidden characters made visible, cut, its text direction isolated."""
    brief = words.shown(text, length)
    title = f' title="{escape(words.visible(text[:1000]))}"' if brief != text else ""
    return Markup(f"<bdi{title}>{escape(brief)}</bdi>")  # noqa: S704
