"""Lines that come often: one of a kind and peer, then how many there were."""

import asyncio

from manyhands.observe import repeats
from manyhands.observe.repeats import Repeats


class Lines:
    """Keeps the lines of a logger."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, object]]] = []
        self.counted = asyncio.Event()

    def warning(self, sentence: str, **facts: object) -> None:
        self.found.append((sentence, facts))
        if "again" in facts:
            self.counted.set()


def test_the_first_line_is_written_at_once_and_further_ones_are_counted():
    async def tell() -> list[tuple[str, dict[str, object]]]:
        lines = Lines()
        kept = Repeats(lines, every_seconds=0.01)
        for number in range(300):
            kept.warn("refused", "10.0.0.1", why=number)
        at_once = len(lines.found)
        await lines.counted.wait()
        assert at_once == 1
        return lines.found

    assert asyncio.run(tell()) == [
        ("refused", {"peer": "10.0.0.1", "why": 0}),
        ("refused", {"peer": "10.0.0.1", "why": 299, "again": 299}),
    ]


def test_other_kinds_and_other_peers_have_lines_of_their_own():
    async def tell() -> list[tuple[str, object]]:
        lines = Lines()
        kept = Repeats(lines)
        for sentence, peer in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "1")):
            kept.warn(sentence, peer)
        return [(sentence, facts["peer"]) for sentence, facts in lines.found]

    assert asyncio.run(tell()) == [("a", "1"), ("b", "1"), ("a", "2")]


def test_what_was_quiet_for_a_while_is_written_at_once_again():
    async def tell() -> list[dict[str, object]]:
        lines = Lines()
        kept = Repeats(lines, every_seconds=0.01)
        kept.warn("refused", "10.0.0.1")
        kept.warn("refused", "10.0.0.1")
        await lines.counted.wait()
        quiet = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, quiet.set)  # after the next look
        await quiet.wait()
        kept.warn("refused", "10.0.0.1")
        return [facts for _, facts in lines.found]

    first, again = {"peer": "10.0.0.1"}, {"peer": "10.0.0.1", "again": 1}
    assert asyncio.run(tell()) == [first, again, first]


def test_very_many_peers_are_one(monkeypatch):
    monkeypatch.setattr(repeats, "_KEPT_MAX", 3)

    async def tell() -> list[object]:
        lines = Lines()
        kept = Repeats(lines)
        for number in range(50):
            kept.warn("refused", f"10.0.0.{number}")
        return [facts["peer"] for _, facts in lines.found]

    assert asyncio.run(tell()) == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "others"]
