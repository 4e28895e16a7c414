"""A report of a worker, until the server has taken each item of it, or refused it for good."""

from collections.abc import Sequence
from typing import Any, Final

from manyhands.client import notes
from manyhands.client.errors import PASSING, Refused
from manyhands.client.stream import Pending

_NAMES: Final = ("done", "failed", "released", "renewed")


class Report:
    """``lists`` are the fields of the next note: completions, failures, releases and renewals."""

    def __init__(
        self,
        done: Sequence[Any],
        failed: Sequence[Any],
        released: Sequence[Any],
        renewed: Sequence[Any],
    ) -> None:
        self.lists: tuple[Sequence[Any], ...] = (done, failed, released, renewed)
        self._places: dict[str, list[int]] | None = None  # in the first note, of each item
        self._refused: list[notes.Refused] = []

    def read(self, asked: Pending) -> list[notes.Refused]:
        """The items that were refused for good. Raises ``Refused`` if others are left: the next
        note has these alone.
        """
        refusals = notes.read_refused(asked.future.result())
        if not refusals:
            return self._refused
        # Of a note that was sent before, whose answer was lost or unsure, an item may have been
        # carried out the first time: then the lease is gone. Only completions are known to the
        # server afterwards.
        was_sent_before = asked.was_repeated or self._places is not None
        left: dict[str, list[Any]] = {name: [] for name in _NAMES}
        places: dict[str, list[int]] = {name: [] for name in _NAMES}
        sentence = ""
        lists = dict(zip(_NAMES, self.lists, strict=True))
        for name, index, code, text in map(_fields, refusals):
            place = index if self._places is None else self._places[name][index]
            # A renewal is soon made again by itself.
            if code in PASSING and name != "renewed":
                left[name].append(lists[name][index])
                places[name].append(place)
                sentence = text
            elif name == "done" or not was_sent_before:
                self._refused.append(notes.Refused(name, place, code, text))
        if any(left.values()):
            self.lists = tuple(left.values())
            self._places = places
            raise Refused("unavailable", sentence)
        return self._refused


def _fields(refused: notes.Refused) -> tuple[str, int, str, str]:
    return refused.list, refused.index, refused.code, refused.sentence
