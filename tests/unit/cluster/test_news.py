"""What a server that decides announces, and what the others make of it."""

from types import SimpleNamespace

import pytest

from manyhands.cluster.link import News, Packed, frames
from manyhands.cluster.link import _decoder as decoder
from manyhands.cluster.news import batch_of, news_of, steps_of, take_steps
from manyhands.model.commands import ByToken, Claim, Complete, NewJob, Submit
from manyhands.model.events import Event
from manyhands.model.job import Holder, Origin
from manyhands.model.plain import PlainLeased
from manyhands.store.index.live import Index
from manyhands.store.mirror import Mirror
from tests.unit.dispatch.desk import Desk


class Front:
    """What another server knows."""

    def __init__(self) -> None:
        self.index = Index(lambda _: None)
        self.mirror = Mirror(self.index)
        self.events: list[Event] = []

    def take(self, news: News) -> bool:
        batch = take_steps(news, self.mirror) if news.steps else batch_of(news)
        if batch is None:
            return False
        if not news.steps:
            self.mirror.take(batch, news.serial, news.position)
        self.events += batch.events
        return True


class Owner(Desk):
    """One that decides, and what it announces."""

    def __init__(self) -> None:
        super().__init__()
        self.router = SimpleNamespace(
            store=self.store, applied_number=lambda: 0, applied_seq=lambda: 0
        )

    def work(self, *, claims: int, completes: int) -> None:
        """Some jobs are submitted, some of them claimed, some of those completed. The very first
        one makes the queue, so it is no plain one.
        """
        self.submit(1)
        self.tell(self.a_complete(self.claim(term_ms=60_000)))
        self.run(100)
        for number in range(5):
            item = NewJob(
                job_id=f"{number:032x}",
                queue="q",
                payload=b"%d" % number,
                origin=Origin("native", f"me{number % 2}", "127.0.0.1"),
                unique_key=b"key" if number == 3 else None,
            )
            self.tell(Submit((item,)))
        self.run(100)
        holder = Holder("native", "w")
        tokens = tuple(f"t{number}" for number in range(claims))
        self.tell(Claim(queues=("q",), holder=holder, tokens=tokens, term_ms=60_000))
        self.run(100)
        for number in range(completes):
            done = Complete(
                job_id=f"{number:032x}",
                proof=ByToken(f"t{number}"),
                result=b"done",
                replaces_payload=number == 1,
            )
            self.tell(done)
        self.run(100)


def travelled(news: News) -> News:
    (frame,) = frames(news)
    found = decoder.decode(frame[4:])
    assert isinstance(found, News)
    return found


def announced(owner: Owner, batch) -> list[News]:
    """As fronts get it: by what happened, if nothing but that did."""
    steps = steps_of(batch, owner.router)
    found = [steps] if steps is not None else news_of(batch, owner.router)
    return [travelled(news) for news in found]


def state_of(index: Index):
    return (
        index.jobs,
        {name: queue.counts for name, queue in index.queues.items()},
        [job.job_id for job in index.ready("q")],
        sorted(index.leased()),
        index.key_holder("q", b"key"),
        (index.serial, index.position, index.unfinished_bytes, index.finished_bytes),
    )


def test_fronts_know_the_same_of_plain_jobs_by_what_happened_to_them():
    """S43."""
    owner, front = Owner(), Front()
    owner.work(claims=3, completes=2)

    announcements = [news for batch in owner.batches for news in announced(owner, batch)]
    assert sum(len(news.steps) for news in announcements) >= 3 + 2
    assert all(front.take(news) for news in announcements)

    front.mirror.applied(owner.batches[-1].number)
    assert state_of(front.index) == state_of(owner.store.live)
    told = [row.event for row in owner.dispatcher.events.after(0, 100)]
    assert front.events == told


@pytest.mark.parametrize("known", [1, 2])
def test_fronts_that_were_sent_whole_jobs_follow_what_happens_to_them(known):
    """S43: ready or leased ones."""
    owner, front = Owner(), Front()
    owner.work(claims=3, completes=2)
    leased = next(
        place
        for place, batch in enumerate(owner.batches)
        if any(isinstance(value, PlainLeased) for value in batch.values.values())
    )
    whole = owner.batches[: leased + known - 1]

    for batch in owner.batches:
        if batch in whole:
            assert all(front.take(travelled(news)) for news in news_of(batch, owner.router))
        else:
            assert all(front.take(news) for news in announced(owner, batch))

    front.mirror.applied(owner.batches[-1].number)
    assert state_of(front.index) == state_of(owner.store.live)


def test_what_does_not_follow_from_what_is_known_is_noticed():
    owner = Owner()
    owner.work(claims=3, completes=2)
    (*_, last) = owner.batches

    assert not all(Front().take(news) for news in announced(owner, last))


def test_steps_take_much_less_room_than_whole_jobs():
    owner = Owner()
    owner.work(claims=5, completes=5)

    def size(messages) -> int:
        return sum(len(part) for each in messages for part in Packed(each).frames())

    rest = owner.batches[1:]  # the first one makes the queue
    steps = size(steps_of(batch, owner.router) for batch in rest)
    whole = size(news for batch in rest for news in news_of(batch, owner.router))

    assert steps * 3 < whole
