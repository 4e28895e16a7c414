"""What exceptions in a task mean for its job (P62)."""

import pytest

from manyhands import Fail, Retry
from manyhands.client.worker.failures import DETAILS_BYTES_MAX, code_of, details_of, failure

HELD = ("id", "token")


class SillyError(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_p62_the_code_is_the_name_of_the_class_with_its_package():
    assert code_of(ValueError()) == "ValueError"
    assert code_of(SillyError()).endswith(".SillyError")
    assert code_of(SystemExit()) == "SystemExit"


def test_p62_details_are_the_traceback_of_bounded_size():
    text = details_of(raised(ValueError("x" * 200_000)))
    assert len(text) <= DETAILS_BYTES_MAX
    assert text.startswith(b"Traceback")
    assert text.endswith(b"x\n")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad"), ("ValueError", "bad", True, None)),
        (KeyError("k"), ("KeyError", "'k'", False, None)),
        (Fail("gone", code="no_user"), ("no_user", "gone", False, None)),
        (Fail(), ("failed", "", False, None)),
        (Retry(delay=1.5), ("retry", "the task asked for a retry", True, 1500)),
        (Retry("later"), ("retry", "later", True, None)),
    ],
)
def test_p62_reports_say_whether_to_retry(error, expected):
    found = failure(HELD, raised(error), (LookupError,))
    assert found[:2] == HELD
    assert (found[2], found[3], found[5], found[6]) == expected


def test_an_exception_without_a_text_is_reported_all_the_same():
    found = failure(HELD, raised(SillyError()), ())
    assert "cannot be shown" in found[3]


def test_text_that_utf_8_cannot_hold_is_replaced():
    assert failure(HELD, raised(ValueError("a\ud800b")), ())[3] == "a?b"


class ShyError(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise KeyError("no notes")


@pytest.mark.parametrize(
    ("code", "shown"),
    [("a\ud800b", "a?b"), (5, "5"), ("c" * 9_000, "c" * 200), (SillyError(), "failed")],
)
def test_p62_a_code_that_is_none_is_reported_all_the_same(code, shown):
    assert failure(HELD, raised(Fail("bad", code=code)), ())[2] == shown


def test_p62_an_exception_whose_traceback_cannot_be_shown_is_reported_all_the_same():
    found = failure(HELD, raised(ShyError("bad")), ())

    assert found[3] == "bad"
    assert b"bad" in found[4] or b"cannot be shown" in found[4]


@pytest.mark.parametrize("delay", ["soon", float("inf"), 1e12])
def test_p62_a_delay_that_is_none_is_named(delay):
    with pytest.raises(ValueError, match="a delay is seconds"):
        Retry(delay=delay)
