"""What a batch holds when payloads leave memory meanwhile."""

from manyhands.engine.decide import decide
from manyhands.model.commands import Attach, Claim, Detach, NewJob, SetTags, Submit
from manyhands.model.job import Holder
from manyhands.store.collector import Collector

PAYLOAD = b"x" * 100


class Desk:
    """A collector, whose payloads are on record as soon as a batch is applied."""

    def __init__(self) -> None:
        self.collector = Collector(lambda _: None, lambda job: job, payload_bytes_max=10)
        self.now = 1_000

    def ask(self, command):
        reply, effects = decide(command, self.collector.index, self.now)
        self.collector.write(effects)
        return reply

    def seal(self):
        batch = self.collector.seal(self.now)
        self.collector.committed(batch.number)
        return batch


def test_a_payload_stays_in_memory_until_the_whole_row_that_is_being_written_again_has_it():
    desk = Desk()
    desk.ask(Submit((NewJob(job_id="1" * 32, queue="q", payload=PAYLOAD),)))
    first = desk.seal()
    desk.ask(SetTags(job_id="1" * 32, add=("red",)))  # the whole row is written again

    desk.collector.applied(first.number)  # now the payload is on record, in the row before that
    desk.ask(Claim(queues=("q",), tokens=("t",), holder=Holder("native", "w")))
    second = desk.seal()

    assert "1" * 32 in second.full
    assert second.jobs["1" * 32].payload == PAYLOAD
    desk.collector.applied(second.number)
    assert desk.collector.index.jobs["1" * 32].stored_bytes == len(PAYLOAD)


def test_s11_a_waiter_on_a_job_that_is_wanted_without_it_costs_no_row():
    desk = Desk()
    desk.ask(
        Submit(
            (
                NewJob(job_id="aa", queue="q"),
                NewJob(job_id="bb", queue="q", durable_interest=False, waiter="c/0"),
            )
        ),
    )
    desk.seal()

    desk.ask(Attach(job_id="aa", waiter="c/1"))
    assert desk.collector.index.jobs["aa"].waiters == ("c/1",)
    assert desk.collector.batch.jobs == {}
    desk.ask(Detach("c/1"))
    assert desk.collector.index.jobs["aa"].waiters == ()
    assert desk.collector.batch.jobs == {}

    desk.ask(Attach(job_id="bb", waiter="c/1"))
    assert set(desk.collector.batch.jobs) == {"bb"}
