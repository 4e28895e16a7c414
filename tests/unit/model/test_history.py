"""Samples add up, and what they tell of durations lies where the durations lay."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.history import BOUNDS_MS, Sample, merged, new_sample, quantile

counts = st.integers(0, 1_000_000)
durations = st.lists(st.integers(0, 10**9), max_size=50)


def a_sample(durations_ms: list[int]) -> Sample:
    sample = new_sample()
    for lasted_ms in durations_ms:
        sample.started += 1
        sample.wait[bisect_left(BOUNDS_MS, lasted_ms)] += 1
        sample.wait_ms += lasted_ms
    return sample


@given(st.lists(durations, max_size=5))
def test_samples_of_parts_add_up_to_the_sample_of_the_whole(parts):
    together = merged(a_sample(part).trimmed() for part in parts)

    whole = a_sample([lasted_ms for part in parts for lasted_ms in part])
    assert together.trimmed() == whole.trimmed()


@given(durations.filter(bool), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_duration_that_it_stands_for(lasted, share):
    found = quantile(a_sample(lasted).wait, share)

    rank = max(1, -(-len(lasted) * share // 1))  # rounded up
    exact = sorted(lasted)[int(rank) - 1]
    bucket = bisect_left(BOUNDS_MS, exact)
    low = BOUNDS_MS[bucket - 1] if bucket else 0
    high = BOUNDS_MS[bucket] if bucket < len(BOUNDS_MS) else BOUNDS_MS[-1]
    assert found is not None
    assert low <= found <= high


def test_without_durations_there_is_no_quantile():
    assert quantile([], 0.5) is None
    assert quantile([0, 0], 0.95) is None


def test_the_later_of_two_spans_tells_how_many_jobs_there_are():
    first, second, silent = Sample(depth=[1, 2, 3, 4]), Sample(depth=[0, 0, 9, 0]), Sample()

    assert merged((first, second, silent)).depth == [0, 0, 9, 0]
