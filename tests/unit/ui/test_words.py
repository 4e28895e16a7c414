"""Numbers, times and foreign texts as the pages say them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.history import Sample
from manyhands.model.job import State
from manyhands.model.payload import Encoding
from manyhands.model.policy import Backoff, Queue, QueuePolicy, Rate
from manyhands.observe.history import Point
from manyhands.ui import drawings, listings, words
from manyhands.ui.charts import charts
from manyhands.ui.queue_settings import FIELDS, read_duration, read_policy, shown_policy
from manyhands.ui.visit import Form, back_to

MINUTE = 60_000
NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 ms"),
        (340, "340 ms"),
        (4_210, "4.2 s"),
        (59_999, "59 s"),
        (200_000, "3 m 20 s"),
        (3_600_000, "1 h"),
        (187_200_000, "2 d 4 h"),
        (-5, "0 ms"),
    ],
)
def test_a_duration_has_at_most_two_units(ms, said):
    assert words.duration(ms) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0"),
        (9_994, "9,994"),
        (12_345, "12.3 k"),
        (1_200_000, "1.2 M"),
        (1e7, "10 M"),
        (999_999, "1000 k"),
    ],
)
def test_a_large_number_is_said_in_short(count, said):
    assert words.compact(count) == said


def test_a_moment_is_told_from_now():
    assert words.ago(NOW - 90_000, NOW) == "1 m 30 s ago"
    assert words.ago(NOW + 5_000, NOW) == "in 5.0 s"
    assert words.ago(NOW, NOW) == "now"
    assert words.instant(NOW) == "2027-01-15 08:00:00 UTC"
    assert words.instant(1 << 62)  # not a date any more, and yet something to show


@given(st.text())
def test_nothing_is_hidden_in_a_shown_text(text):
    shown = words.visible(text)

    assert all(char.isprintable() or char.isspace() for char in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\0\n")


@given(st.text(), st.integers(8, 80))
def test_a_shown_name_is_never_longer_than_its_room(text, length):
    assert len(words.shown(text, length)) <= length


def test_a_name_that_is_cut_keeps_its_end():
    assert words.cut("beginning-of-a-long-name.jpg", 16) == "beginning-o….jpg"


@given(st.binary(max_size=600), st.sampled_from(Encoding))
def test_any_payload_has_a_preview_in_one_line(payload, encoding):
    preview = listings.preview(payload, encoding)

    assert "\n" not in preview
    assert len(preview) <= 110


@given(st.dictionaries(st.sampled_from(State), st.integers(0, 10**9)))
def test_a_state_bar_is_as_wide_as_its_frame_and_tells_its_numbers(counts):
    bar = str(drawings.state_bar(counts))

    widths = [float(part.split('"')[0]) for part in bar.split(' width="')[1:]]
    assert not widths or abs(sum(widths) - 1000) < 1
    assert all(f"{count:,} {state}" in bar for state, count in counts.items() if count)


def test_a_share_that_is_there_is_seen_however_small():
    bar = str(drawings.state_bar({State.READY: 10**9, State.FAILED: 1}))

    failed = bar.split("fill-failed")[1]
    assert float(failed.split('width="')[1].split('"')[0]) > 5


def test_a_sparkline_of_nothing_is_flat():
    assert "0.0,26.5" in str(drawings.sparkline([0, 0, 0], "nothing"))
    assert "&lt;b&gt;" in str(drawings.sparkline([1, 2], "<b>"))


def test_the_rate_of_a_minute_that_is_going_on_is_that_of_its_time_so_far():
    points = [Point(NOW, Sample(completed=60)), Point(NOW + MINUTE, Sample(completed=30))]

    throughput = charts(points, MINUTE, NOW + MINUTE + 30_000)[0]

    assert throughput.series[1].values == (60.0, 60.0)
    assert throughput.rows()[0][1][1] == "60 per minute"
    assert '"completed"' in throughput.numbers()


def test_a_chart_without_anything_says_so():
    assert charts([Point(NOW, Sample())], MINUTE, NOW + MINUTE)[0].is_empty


def test_settings_of_a_queue_are_read_as_they_are_shown():
    policy = QueuePolicy(
        attempts_max=-1,
        lease_ms=90_000,
        concurrency_max=4,
        rate=Rate(100, MINUTE),
        backoff=Backoff(first_ms=5_000),
        record_ms=7 * 24 * 60 * MINUTE,
    )
    form = Form(list(shown_policy(policy).items()))

    command = read_policy(form, Queue("q", policy), {})

    assert command is not None
    assert command.policy == policy
    assert command.fields is not None
    assert "jobs_max_high" not in command.fields  # the form does not have it: it stays


@pytest.mark.parametrize("field", [field.name for field in FIELDS])
def test_every_wrong_setting_is_told_at_its_field(field):
    problems: dict[str, str] = {}

    assert read_policy(Form([(field, "what?")]), Queue("q"), problems) is None
    assert list(problems) == [field]
    assert problems[field].endswith(".")


@pytest.mark.parametrize(("text", "ms"), [("90", 90_000), ("1.5 h", 5_400_000), ("20MS", 20)])
def test_a_duration_is_typed_with_or_without_its_unit(text, ms):
    assert read_duration(text) == ms


@pytest.mark.parametrize("text", ["", "-5 s", "5 weeks", "1e9 d", "٣ s", "9" * 30 + " d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"\.$"):
        read_duration(text)


@pytest.mark.parametrize(
    "place", ["", "//evil", "https://evil", "/ui", "/ui/\r\nx", "javascript:1"]
)
def test_a_form_goes_back_to_nowhere_else(place):
    assert back_to(Form([("back", place)]), "/ui/queues") == "/ui/queues"
