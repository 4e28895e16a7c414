"""Clients at all servers of a simulated cluster, and what they were told."""

from collections import Counter

from manyhands.dispatch.sleepers import Sleeper
from manyhands.model import commands as c
from manyhands.model import replies as r
from manyhands.model.events import Signal
from manyhands.model.job import FINISHED, Holder, Job, State
from tests.simulation import checkers
from tests.simulation.cluster_world import Cluster, Node

QUEUE = "q"


class Ledger:
    """What clients were told."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.submitted: dict[str, str] = {}  # acknowledged
        self.completed: Counter[str] = Counter()  # acknowledged
        self.answered: set[str] = set()  # those that end with their waiters
        self.waited_for: dict[str, Node] = {}  # by a connection of this server, once accepted
        self.ended: Counter[str] = Counter()  # as those were told that waited
        self.refused: Counter[r.Why] = Counter()
        self.workers: list[Worker] = []
        self._asked: Counter[object] = Counter()
        self._told: dict[object, int] = {}

    def ask(self, node: Node, command: c.Command, settle=None, *, client=None) -> None:
        """Asks as a client of its own, or as one that all others at this server share."""
        client = client or node
        self._asked[client] += 1
        number = self._asked[client]

        def settled(reply: r.Reply) -> None:
            if not node.alive:
                return
            checkers.check_reply(reply, node.router.failed)
            if isinstance(reply, r.Refusal):
                self.refused[reply.why] += 1
            else:
                # Refusals need no decision: sessions keep them in order.
                assert self._told.get(client, 0) < number, "an answer overtook another one"
                self._told[client] = number
            if settle is not None:
                settle(reply)

        node.router.ask(command, settled)

    def submit(self, node: Node, queue: str = QUEUE, *, waits: bool = False) -> str:
        job_id = node.ids.job_id(node.clock.now())
        waiter = self._connection(node) if waits else None
        item = c.NewJob(job_id=job_id, queue=queue, payload=b"x", waiter=waiter)

        def settle(reply: r.Reply) -> None:
            if isinstance(reply, r.SubmittedMany):
                assert reply.items[0].job.job_id == job_id
                self.submitted[job_id] = queue
                if waits:
                    self.waited_for[job_id] = node

        self.ask(node, c.Submit((item,)), settle)
        return job_id

    def submit_in_foreground(self, node: Node) -> str:
        """A job that ends with its waiter (rule 22): nothing is promised, but whoever waits is told
        of the job before its end.
        """
        job_id = node.ids.job_id(node.clock.now())
        name = node.ids.connection()

        def settle(_: r.Reply) -> None:
            if node.alive:
                self.answered.add(job_id)  # a refusal may say that nobody knows

        def heard(signal: Signal) -> None:
            assert job_id in self.answered, f"{job_id} ended before its submitter was told of it"
            if signal.job.state in FINISHED:
                self.ended[job_id] += 1

        node.router.on_signal[name] = heard
        item = c.NewJob(job_id=job_id, queue=QUEUE, waiter=name, durable_interest=False)
        node.router.ask(c.Submit((item,), early=True), settle)
        return job_id

    def _connection(self, node: Node) -> str:
        name = node.ids.connection()

        def heard(signal: Signal) -> None:
            if signal.job.state in FINISHED:
                self.ended[signal.job.job_id] += 1

        node.router.on_signal[name] = heard
        return name

    def work(self, node: Node, queue: str = QUEUE, count: int = 1) -> None:
        """Asks for work once."""
        self.claim(node, queue, count, lambda jobs: [self.complete(node, job) for job in jobs])

    def claim(
        self,
        node: Node,
        queue: str,
        count: int,
        take,
        connection: str | None = None,
        *,
        client=None,
    ) -> None:
        tokens = tuple(node.ids.token() for _ in range(count))
        holder = Holder("native", f"{node.name}{self.world.rng.randint(0, 3)}")

        def settle(reply: r.Reply) -> None:
            take(reply.jobs if isinstance(reply, r.Claimed) else ())

        term_ms = None if connection is not None else 60_000
        command = c.Claim(
            queues=(queue,), holder=holder, tokens=tokens, term_ms=term_ms, connection=connection
        )
        self.ask(node, command, settle, client=client)

    def complete(self, node: Node, job: Job, done=None) -> None:
        def settle(reply: r.Reply) -> None:
            if isinstance(reply, r.Changed) and not reply.repeated:
                self.completed[job.job_id] += 1
            if done is not None:
                done()

        assert job.lease is not None
        command = c.Complete(job_id=job.job_id, proof=c.ByToken(job.lease.token), result=b"done")
        delay = self.world.rng.uniform(0.0, 0.05)
        node.loop.call_later(delay, lambda: self.ask(node, command, settle))

    def keep_working(self) -> None:
        """At each server somebody works who sleeps where there is no work, and is only woken."""
        for node in self.world.living():
            if all(worker.node is not node for worker in self.workers):
                self.workers.append(Worker(self, node, bound=False))
                self.workers.append(Worker(self, node, bound=True))

    def check(self) -> None:
        """From outside: what was acknowledged is there, and was done once. Nobody can tell of what
        a database lost together with the server that wrote it.
        """
        base = self.world.base
        lost = base.lost_ids()
        rows = {job_id: row.job() for job_id, row in base.disk.rows.items()}
        for job_id in self.submitted.keys() - lost:
            assert job_id in rows, f"{job_id} was acknowledged and is lost"
        for job_id in self.completed.keys() - lost:
            count = self.completed[job_id]
            assert count == 1, f"{job_id} was completed {count} times"
            assert rows[job_id].state is State.COMPLETED, f"{job_id}: a completion is lost"
        seqs = [seq for seq, _ in base.disk.events]
        assert seqs == list(range(1, len(seqs) + 1)), "events have gaps or are out of order"
        told_twice = [one for one in self.ended.keys() - lost if self.ended[one] > 1]
        assert not told_twice, f"told twice of the end of {told_twice[:3]}"


class Worker:
    """Works as long as there is work, and sleeps when there is none."""

    def __init__(self, ledger: Ledger, node: Node, *, bound: bool) -> None:
        self.node = node
        self.is_waiting = False  # for an answer
        self._ledger = ledger
        self._connection = node.ids.connection() if bound else None
        self.sleeper = Sleeper((QUEUE,), lambda _: self.go_on(), hands=2)
        self.go_on()

    def go_on(self) -> None:
        if not self.is_waiting and self.node.alive:
            self.is_waiting = True
            self._ledger.claim(self.node, QUEUE, 2, self._take, self._connection, client=self)

    def _take(self, jobs: tuple[Job, ...]) -> None:
        self.is_waiting = False
        self._left = len(jobs)
        if not jobs:
            self.node.router.sleepers.sleep(self.sleeper)
        for job in jobs:
            self._ledger.complete(self.node, job, self._done)

    def _done(self) -> None:
        self._left -= 1
        if not self._left:
            self.go_on()
