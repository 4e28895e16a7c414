"""Durations as people write them."""

import pytest

from manyhands.config.durations import as_duration, in_unit, read_ms
from manyhands.config.kinds import Duration, WrongValueError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("2D", 172_800_000),
        ("1w", 604_800_000),
        (" 7 ", 7_000),
        ("0.5", 500),
    ],
)
def test_a_duration_has_units_and_a_bare_number_counts_in_seconds(text, ms):
    assert read_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "s", "5 m", "-1s", "1h-30m", "1e3", "inf", "nan", "5y", "9" * 50, "٣s"]
)
def test_what_is_no_duration_is_none(text):
    assert read_ms(text) is None


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (999.7, "1s"),
        (4_200, "4.2s"),
        (9_999, "10s"),
        (59_800, "1m"),
        (200_000, "3m20s"),
        (3_600_000, "1h"),
        (3_605_000, "1h"),
        (187_200_000, "2d4h"),
        (-5, "0ms"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(ms, text):
    assert as_duration(ms) == text
    assert read_ms(as_duration(ms)) is not None


def test_an_option_counts_in_its_own_unit():
    days = Duration(0, 36_500, unit="d")

    assert [days.read(raw) for raw in (7, "7", "7d", "2w", "48h")] == [7, 7, 7, 14, 2]
    assert in_unit("90m", "h") == 1.5
    assert Duration(0, 10, or_none=True, unit="h").read("none") is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("36h", "it is not a whole number of days"),
        ("soon", "it is not a duration"),
        ("none", "it is not a whole number"),
        ("-1", "it is out of range"),
        ("99999d", "it is out of range"),
        (1.5, "it is not a whole number"),
    ],
)
def test_a_wrong_duration_of_an_option_is_explained(raw, why):
    with pytest.raises(WrongValueError, match=f"^{why}$"):
        Duration(0, 36_500, unit="d").read(raw)
