"""A job's story and its surroundings, drawn from what is on record."""

import re

from manyhands.model.events import Event
from manyhands.model.job import (
    Attempt,
    EndReason,
    Failure,
    HistoryEntry,
    Holder,
    Job,
    Lease,
    Origin,
    State,
)
from manyhands.model.reasons import Reason
from manyhands.ui import graph, timeline

NOW = 1_700_000_000_000
W1, W2 = Holder("gearman", "w1"), Holder("qless", "w2")


def a_job(**fields) -> Job:
    given = {
        "job_id": "ab",
        "queue": "q",
        "state": State.READY,
        "submitted_at": NOW - 10_000,
        "entered_at": NOW - 10_000,
        "origin": Origin("gearman", "", "10.0.0.1"),
    }
    return Job(**{**given, **fields})


def attempt(number: int, since: int, to: int, reason: EndReason, holder: Holder = W1) -> Attempt:
    return Attempt(number, holder, NOW - since, NOW - to, reason, failure="why\nmore")


def test_what_happened_in_one_millisecond_is_told_in_the_order_in_which_it_can_happen():
    ready = Event(
        *(NOW - 10_000, State.READY, "ab", "q", "", 0, 0, 0, 5, None, None, 0.0, 0, None),
        Origin("gearman"),
        0,
    )
    job = a_job(
        state=State.COMPLETED,
        entered_at=NOW - 10_000,
        finished_at=NOW - 10_000,
        attempts=(attempt(1, 10_000, 10_000, EndReason.COMPLETED),),
    )

    told = [entry.what for entry in timeline.entries(job, [ready], NOW)]

    assert told == ["Submitted", "Ready", "Attempt 1 completed", "Completed"]


def test_a_story_has_its_beginning_its_leases_and_its_end_in_order():
    job = a_job(
        state=State.FAILED,
        entered_at=NOW - 1_000,
        finished_at=NOW - 1_000,
        attempts=(
            attempt(1, 9_000, 8_000, EndReason.EXPIRED),
            attempt(2, 5_000, 1_000, EndReason.FAILED, W2),
        ),
        history=(HistoryEntry(NOW - 7_000, "moved", "from there"),),
        failure=Failure("boom", "it broke\nat line 1"),
    )

    story = timeline.entries(job, (), NOW)

    assert [entry.what for entry in story] == [
        "Submitted",
        "Attempt 1 expired",
        "Moved",
        "Attempt 2 failed",
        "Failed",
    ]
    assert story[-1].detail == "boom: it broke"
    assert story[1].lasted_ms == 1_000


def entered(at: int, state: State, reason: Reason = Reason.NONE) -> Event:
    return Event(
        *(at, state, "ab", "q", reason, 0, 0, 0, 5, None, None, 0.0, 0, None), Origin("gearman"), 0
    )


def test_waits_between_attempts_do_not_double_the_story():
    job = a_job(
        attempts=(
            attempt(1, 9_000, 8_000, EndReason.FAILED),
            attempt(2, 7_000, 6_000, EndReason.FAILED),
        ),
        reason=Reason.RETRY,
        entered_at=NOW - 6_000,
    )
    events = [
        entered(NOW - 10_000, State.READY),
        entered(NOW - 8_000, State.DELAYED, Reason.RETRY),
        entered(NOW - 7_500, State.READY),
        entered(NOW - 7_200, State.READY, Reason.MOVED),
        entered(NOW - 6_000, State.READY, Reason.RETRY),
    ]

    story = [(entry.what, entry.detail) for entry in timeline.entries(job, events, NOW)]

    assert [what for what, _ in story] == [
        "Submitted",
        "Ready",
        "Attempt 1 failed",
        "Ready",
        "Attempt 2 failed",
        "Ready",
    ]
    assert [detail for what, detail in story if what == "Ready"] == ["", "moved", "retry"]


def test_a_story_of_a_job_that_was_submitted_again_begins_with_the_first_time():
    job = a_job(
        submitted_at=NOW - 2_000,
        entered_at=NOW - 2_000,
        incarnation=1,
        attempts=(attempt(1, 9_000, 8_000, EndReason.COMPLETED),),
        history=(
            HistoryEntry(NOW - 10_000, "submitted"),
            HistoryEntry(NOW - 2_000, "submitted again"),
        ),
    )

    story = timeline.entries(job, (), NOW)

    whats = ["Submitted", "Attempt 1 completed", "Submitted again", "Ready"]
    assert [entry.what for entry in story] == whats
    assert (story[0].at, story[2].detail) == (NOW - 10_000, "by 10.0.0.1")
    assert "10 s in all, 9.0 s of it waiting" in str(timeline.strip(job, NOW))


def test_events_add_the_states_that_leases_do_not_tell():
    job = a_job(lease=Lease("t", 1, W1, NOW - 4_000, 60_000, NOW + 56_000), state=State.LEASED)

    def event(state: State, ago: int) -> Event:
        return Event(
            *(NOW - ago, state, "ab", "q", "retry", 0, 0, 0, 5, None, None, 0.0, 0, None),
            job.origin,
            0,
        )

    story = timeline.entries(job, [event(State.DELAYED, 9_000), event(State.LEASED, 4_000)], NOW)

    assert [entry.kind for entry in story] == ["submitted", "delayed", "leased"]
    assert story[-1].until_at == NOW + 56_000


def test_the_trail_names_each_protocol_once_for_each_worker():
    job = a_job(
        attempts=(
            attempt(1, 9_000, 8_000, EndReason.EXPIRED),
            attempt(2, 7_000, 6_000, EndReason.LOST),
            attempt(3, 5_000, 1_000, EndReason.FAILED, W2),
        )
    )

    stops = [(stop.what, stop.realm, stop.who, stop.count) for stop in timeline.trail(job)]
    assert stops == [
        ("submitted over", "gearman", "10.0.0.1", 1),
        ("worked over", "gearman", "w1", 2),
        ("worked over", "qless", "w2", 1),
    ]


def test_the_strip_tells_how_long_it_waited():
    job = a_job(attempts=(attempt(1, 9_000, 5_000, EndReason.EXPIRED),))

    drawn = str(timeline.strip(job, NOW))
    assert "10 s in all, 6.0 s of it waiting" in drawn
    assert drawn.count("<rect") == 2


def test_a_long_story_keeps_its_beginning_and_its_latest():
    story = [timeline.Entry(at, "note", str(at)) for at in range(100)]

    shown, left_out = timeline.newest_first(story, 10)
    assert [entry.what for entry in shown] == [*map(str, range(99, 90, -1)), "0"]
    assert left_out == 90


class _Live:
    def __init__(self, jobs: dict[str, Job]) -> None:
        self.jobs = jobs

    def dependants(self, job_id: str) -> list[str]:
        return [other.job_id for other in self.jobs.values() if job_id in other.depends_on]

    def live_job(self, job_id: str) -> Job | None:
        return self.jobs.get(job_id)

    def named(self, _namespace: str, _name: str) -> None:
        return None


class _Store:
    def __init__(self, *jobs: Job) -> None:
        self.live = _Live({job.job_id: job for job in jobs})

    def find(self, _job_id: str) -> None:
        return None


async def surroundings(centre: str, *jobs: Job) -> graph.Graph | None:
    store = _Store(*jobs)
    return await graph.gather(store, store.live.live_job(centre))


def run(coroutine):
    import asyncio

    return asyncio.run(coroutine)


def test_a_job_alone_has_no_graph():
    assert run(surroundings("aa", a_job(job_id="aa"))) is None


def test_every_job_stands_right_of_what_it_needs():
    jobs = [
        a_job(job_id="a1"),
        a_job(job_id="a2", depends_on=("a1",)),
        a_job(job_id="a3", depends_on=("a1", "a2"), name="<script>"),
        a_job(job_id="a4", depends_on=("a3",)),
    ]
    found = run(surroundings("a3", *jobs))

    assert {key: node.layer for key, node in found.nodes.items()} == {
        "a1": 0,
        "a2": 1,
        "a3": 2,
        "a4": 3,
    }
    drawn = str(graph.draw(found))
    assert drawn.count('class="edge"') == 4
    assert "<script>" not in drawn
    assert re.findall(r'href="/ui/job/(\w+)"', drawn) == ["a1", "a2", "a4"]


def test_many_neighbours_are_folded_into_one_with_their_number():
    many = [a_job(job_id=f"b{number:02x}") for number in range(50)]
    centre = a_job(job_id="aa", depends_on=tuple(job.job_id for job in many))

    drawn = str(graph.draw(run(surroundings("aa", centre, *many))))

    assert "40 more" in drawn
    assert drawn.count("<g ") == 12


def test_a_dependency_that_is_not_on_record_is_drawn_without_a_link():
    drawn = str(graph.draw(run(surroundings("aa", a_job(job_id="aa", depends_on=("bb",))))))

    assert "not known" in drawn
    assert "href" not in drawn


def test_a_dense_graph_stays_within_its_bound():
    jobs = [
        a_job(job_id=f"c{number:03x}", depends_on=tuple(f"c{k:03x}" for k in range(number)))
        for number in range(200)
    ]
    found = run(surroundings("c0c7", *jobs))

    assert len(found.nodes) < 200
    assert str(graph.draw(found)).startswith("<svg")
