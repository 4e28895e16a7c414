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
from manyhands.ui.charts import Frame, backlog, stacked, throughput
from manyhands.ui.query import state_word
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
    assert all(f"{count:,} {state_word(state)}" in bar for state, count in counts.items() if count)


def test_a_share_that_is_there_is_seen_however_small():
    bar = str(drawings.state_bar({State.READY: 10**9, State.FAILED: 1}))

    failed = bar.split("fill-failed")[1]
    assert float(failed.split('width="')[1].split('"')[0]) > 5


def test_a_sparkline_of_nothing_is_flat():
    assert "0.0,26.5" in str(drawings.sparkline([0, 0, 0], "nothing"))
    assert "&lt;b&gt;" in str(drawings.sparkline([1, 2], "<b>"))


def sampled(*completed: int) -> list[Point]:
    depth = [0, 0, 1, 0]
    return [
        Point(NOW + at * MINUTE, Sample(completed=count, depth=depth))
        for at, count in enumerate(completed)
    ]


def test_the_rate_of_a_minute_that_is_going_on_is_that_of_its_time_so_far():
    chart = throughput(Frame(sampled(60, 30), MINUTE, NOW + MINUTE + 30_000))

    assert chart.series[0].values == (60.0, 60.0)
    assert chart.is_open
    assert chart.rows()[0][1][0] == "60"
    assert '"completed"' in chart.numbers()


def test_a_minute_that_has_just_begun_has_no_rate_yet():
    chart = throughput(Frame(sampled(60, 3), MINUTE, NOW + MINUTE + 4_000))

    assert chart.series[0].values == (60.0, None)


def test_a_minute_that_is_over_is_not_drawn_as_open():
    chart = throughput(Frame(sampled(60, 30), MINUTE, NOW + 2 * MINUTE))

    assert chart.series[0].values == (60.0, 30.0)
    assert not chart.is_open


def test_before_the_server_was_there_no_chart_has_values():
    points = [Point(NOW - MINUTE, Sample()), *sampled(60)]
    frame = Frame(points, MINUTE, NOW + MINUTE)

    assert throughput(frame).series[0].values == (None, 60.0)
    assert backlog(frame).series[0].values == (None, 1)


def test_layers_have_a_colour_each_and_their_own_values():
    frame = Frame(sampled(60, 30), MINUTE, NOW + 2 * MINUTE)

    chart = stacked(frame, "By queue", {"a": [40, 10], "b": [20, 20]})

    assert [line.values for line in chart.series] == [(40.0, 10.0), (20.0, 20.0)]
    assert len({line.colour for line in chart.series}) == 2
    assert all(line.stacked for line in chart.series)


def test_a_chart_without_anything_says_so():
    assert throughput(Frame([Point(NOW, Sample())], MINUTE, NOW + MINUTE)).is_empty


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


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680"),
        ("\u2764\ufe0f\u200d\U0001f525", "\u2764\ufe0f\u200d\U0001f525"),
        ("pay\u200dpal", "pay\u27e8U+200D\u27e9pal"),
        ("\U0001f469\u200dx", "\U0001f469\u27e8U+200D\u27e9x"),
    ],
)
def test_a_joiner_is_hidden_only_where_it_joins_pictures(text, seen):
    assert words.visible(text) == seen
