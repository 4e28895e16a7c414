"""The ready jobs of a queue, against a list that is sorted anew each time."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from manyhands.model.job import Job, State
from manyhands.store.index.ready import ReadyQueue, entry_order

AHEAD = -(1 << 62)
PRIORITIES = (0.0, 1.0, -2.5)
LIMITS = ((), ("a",), ("a", "b"))


class Model:
    """A ready queue as an index uses it, and what it should hold."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.queue = ReadyQueue("q", self.jobs.get)
        self.number = 0

    def position(self, range_: str) -> int:
        self.number += 1
        return {"tail": self.number, "front": -self.number, "ahead": AHEAD + self.number}[range_]

    def put(self, job: Job) -> None:
        old = self.jobs.get(job.job_id)
        self.jobs[job.job_id] = job
        was_ready = old is not None and old.state is State.READY
        if was_ready and job.state is not State.READY:
            self.queue.count -= 1
        if job.state is State.READY:
            self.queue.count += not was_ready
            self.queue.add(job)

    def add(self, range_: str, priority: float, limits: tuple[str, ...]) -> None:
        self.put(
            Job(
                job_id=f"{self.number:032x}",
                queue="q",
                state=State.READY,
                priority=priority,
                limits=limits,
                position=self.position(range_),
            )
        )

    def expected(self) -> list[Job]:
        ready = [job for job in self.jobs.values() if job.state is State.READY]
        return sorted(ready, key=lambda job: (-job.priority, job.position))


ranges = st.sampled_from(("tail", "tail", "front", "ahead"))
steps = st.one_of(
    st.tuples(st.just("add"), ranges, st.sampled_from(PRIORITIES), st.sampled_from(LIMITS)),
    st.tuples(st.just("claim")),
    st.tuples(st.just("claim_any"), st.integers(0, 200)),
    st.tuples(st.just("return"), st.integers(0, 200), ranges),
    st.tuples(st.just("change"), st.integers(0, 200), st.sampled_from(PRIORITIES)),
    st.tuples(st.just("touch"), st.integers(0, 200)),
)


def take_step(model: Model, step: tuple) -> None:
    kind, *rest = step
    if kind == "add":
        model.add(*rest)
    elif kind == "claim":
        job = model.queue.first()
        assert job == next(iter(model.expected()), None)
        if job is not None:
            model.put(replace(job, state=State.LEASED))
    elif model.jobs:
        job = list(model.jobs.values())[rest[0] % len(model.jobs)]
        ready = job.state is State.READY
        if kind == "claim_any" and ready:
            model.put(replace(job, state=State.LEASED))
        elif kind == "return" and not ready:
            model.put(replace(job, state=State.READY, position=model.position(rest[1])))
        elif kind == "change" and ready:
            model.put(replace(job, priority=rest[1], position=model.position("tail")))
        elif kind == "touch":  # a new value of the job in the same place, as a renewed interest
            model.jobs[job.job_id] = replace(job, reason="touched")


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=120))
def test_ready_jobs_come_in_the_order_of_a_sorted_list(taken):
    model = Model()
    for step in taken:
        take_step(model, step)
        assert model.queue.first() == next(iter(model.expected()), None)

    assert list(model.queue) == model.expected()
    assert model.queue.count == len(model.expected())


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=80))
def test_a_queue_rebuilt_in_entry_order_is_the_same_queue(taken):
    model = Model()
    for step in taken:
        take_step(model, step)

    rebuilt = ReadyQueue("q", model.jobs.get)
    for job in sorted(model.expected(), key=entry_order):
        rebuilt.count += 1
        rebuilt.add(job)
    assert list(rebuilt) == model.expected()


def test_jobs_may_be_claimed_while_the_queue_is_walked():
    model = Model()
    for _ in range(100):
        model.add("tail", 0.0, ())

    walked = []
    for job in model.queue:
        walked.append(job)
        model.put(replace(job, state=State.LEASED))

    assert len(walked) == 100
    assert model.queue.first() is None
