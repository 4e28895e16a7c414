"""Topic patterns: `*` is one word, `#` any number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.topic_patterns import Pattern, words_of

WORDS = st.lists(st.sampled_from(["a", "b", ""]), max_size=6)
PATTERNS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6)


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("#", ["", "a", "a.b", "a..b"], []),
        ("", [""], ["a"]),
        ("*", ["a"], ["", "a.b"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b.a"]),
        ("#.c", ["c", "a.c", "a.b.c"], ["c.a"]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "a.c.b"]),
        ("#.b.#.b", ["b.b", "b.a.b", "a.b.b.b"], ["b", "b.b.a"]),
        ("*.#", ["a", "a.b"], [""]),
    ],
)
def test_patterns_fit_what_they_should(pattern, fitting, other):
    assert all(Pattern(pattern).matches(words_of(key)) for key in fitting)
    assert not any(Pattern(pattern).matches(words_of(key)) for key in other)


@given(PATTERNS, WORDS)
def test_matching_agrees_with_a_regular_expression(pattern, words):
    text, key = ".".join(pattern), ".".join(words)
    # Each word with a dot behind it, so that none and an empty one differ.
    wild = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    parts = [wild.get(word, re.escape(word) + r"\.") for word in words_of(text)]
    expected = re.fullmatch("".join(parts), "".join(f"{word}." for word in words_of(key)))

    assert Pattern(text).matches(words_of(key)) == bool(expected)


def test_a_pattern_costs_one_step_for_each_word_of_a_key():
    """Whatever the pattern: nothing is tried again."""
    looked_up = []

    class Words(dict[str, int]):
        def get(self, word, default=0):
            looked_up.append(word)
            return super().get(word, default)

    key = ["a"] * 127
    for text in ("#." * 500 + "zz", "#.a" * 100 + ".zz", "#." + "*." * 100 + "zz"):
        pattern = Pattern(text)
        pattern._masks = Words(pattern._masks)
        looked_up.clear()

        assert not pattern.matches(key)
        assert len(looked_up) <= len(key)
