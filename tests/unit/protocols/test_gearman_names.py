"""How functions, which are bytes, become queues, which are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.protocols.gearman.names import as_word, queue_of, unescaped

NAMES = {
    b"reverse": "reverse",
    b"a b": "a b",
    "größe".encode(): "größe",
    b"staging\tmail": r"staging\x09mail",
    b"gr\xf6\xdfe": r"gr\xf6\xdfe",
    b"a\nb": r"a\x0ab",
    b"\x7f": r"\x7f",
    "\x85".encode(): r"\xc2\x85",
    rb"App\Jobs\Mail": r"App\Jobs\Mail",
    rb"App\xylophone": r"App\xylophone",
    rb"App\xdebug": r"App\x5cxdebug",
    rb"\x5c": r"\x5cx5c",
    b"\\\t": r"\\x09",
}
backslashes = st.sampled_from([b"\\", b"\\x", b"\\x5c", b"\\x09", b"\t", b"\xe4", "ä".encode()])
functions = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.lists(st.one_of(backslashes, st.binary(max_size=2)), min_size=1).map(b"".join),
).filter(lambda name: 0 < len(name) < 60)


@pytest.mark.parametrize("function", NAMES)
def test_a_function_is_a_queue_that_tables_can_show(function):
    """G15"""
    assert queue_of(function) == NAMES[function]
    assert unescaped(NAMES[function].encode()) == function


@given(functions)
def test_every_function_has_a_queue_of_its_own(function):
    """G15"""
    queue = queue_of(function)

    assert queue is not None
    assert unescaped(queue.encode()) == function
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in queue)
    assert queue.encode().decode() == queue


@given(functions)
def test_what_a_listing_shows_can_be_given_to_a_command(function):
    """G57"""
    queue = queue_of(function)
    assert queue is not None

    assert " " not in as_word(queue)
    assert unescaped(as_word(queue).encode()) == function


@pytest.mark.parametrize(
    "function", [b"", b"x" * 256, "é".encode() * 128, b"\xe9" * 64, b"\t" * 64]
)
def test_a_name_that_is_empty_or_too_long_has_no_queue(function):
    """G15"""
    assert queue_of(function) is None


@pytest.mark.parametrize("function", [b"x" * 255, "é".encode() * 127, b"\xe9" * 63])
def test_names_up_to_255_bytes_have_one(function):
    """G15"""
    assert queue_of(function) is not None
