"""The same commands by the short way of plain jobs and by the rules alone.

A run is a list of steps. What a step means depends only on the run so far (the third leased job,
the newest connection), so two runs of the same steps stay the same as long as both ways agree.
Everything that anybody could notice is logged: replies and when they left, signals, wake-ups, what
was committed (jobs, events, and all rows that the writer makes of the packed frame, byte for
byte), the index, the figures.
"""

import random
from collections.abc import Callable
from typing import Any

from manyhands.dispatch.sleepers import Sleeper
from manyhands.model.commands import (
    Attach,
    ByAnyone,
    ByConnection,
    ByHolder,
    ByToken,
    Cancel,
    Claim,
    ClaimOrder,
    Command,
    Complete,
    Conclude,
    Depart,
    Detach,
    ExpireLease,
    Fail,
    ForgetQueue,
    Look,
    Move,
    NewJob,
    OnExisting,
    Release,
    Renew,
    Report,
    ReportDrained,
    Requeue,
    SetDependencies,
    SetLimit,
    SetPriority,
    SetQueue,
    SetTags,
    Submit,
)
from manyhands.model.job import Failure, Holder, Job, Origin
from manyhands.model.plain import PLAIN_BYTES_MAX, job_of
from manyhands.model.policy import (
    TERMS,
    OnDuplicate,
    OnUnknownDependency,
    QueuePolicy,
    Rate,
)
from manyhands.model.receipts import Once
from manyhands.model.replies import Claimed, Reply, Submitted, SubmittedMany
from manyhands.observe.facts import Facts
from manyhands.observe.tallies import Tallies
from manyhands.store.batch import Batch
from manyhands.store.index.recount import check_index
from manyhands.store.records.fold import Window
from manyhands.store.records.frames import HEAD_BYTES, Counters, decode_frame
from manyhands.store.records.packer import Packer, Removals, TermsBook
from manyhands.store.records.rows import decode_event
from tests.unit.dispatch.desk import COMMIT_MS, Desk

Step = tuple[str, int, int]  # what to do, and two numbers that choose how
Decide = Callable[..., Any]

QUEUES = ("a", "b", "c")
CONNECTIONS = ("here/1", "here/2", "here/3")
POLICIES = (
    *(QueuePolicy(),) * 4,
    QueuePolicy(concurrency_max=1),
    QueuePolicy(rate=Rate(count=2, per_ms=40)),
    QueuePolicy(attempts_max=2, lease_ms=30, lease_forced=True),
    QueuePolicy(jobs_max=6),
)
REALMS = tuple(TERMS)
# The plain words come more often: those are the ones that have two ways.
WORDS = (
    *("submit",) * 5,
    *("claim",) * 5,
    *("complete",) * 5,
    *("submit_at_once", "claim_at_once", "complete_at_once") * 3,
    *("submit_rarely", "submit_many", "claim_rarely", "claim_many", "complete_rarely", "conclude"),
    *("fail", "release", "renew", "report", "cancel", "requeue", "move", "priority", "tags"),
    *("depend", "attach", "detach", "depart", "queue", "limit", "forget", "look", "expire"),
    *("sleep", "wait", "wait", "wait_long"),
)


def what_is_written(frame: bytearray) -> tuple[Any, ...]:
    """All rows that are written for a frame, and the events as whoever reads them sees them."""
    window = Window()
    window.fold(decode_frame(memoryview(frame)[HEAD_BYTES:]))
    rows = {name: list(changes.rows()) for name, changes in window.tables.items()}
    events = [decode_event(body) for body in window.events]
    return window.inserted, window.updated, rows, window.events_after, events


def some_steps(seed: int, count: int) -> list[Step]:
    dice = random.Random(seed)
    return [(dice.choice(WORDS), dice.randrange(1000), dice.randrange(1000)) for _ in range(count)]


def run_both(steps: list[Step]) -> tuple[list[Any], list[Any]]:
    """The logs of the two ways: the short one where it applies, and the rules alone."""
    return run(steps, Trial()), run(steps, Trial(by_rules=True))


def run(steps: list[Step], trial: "Trial") -> list[Any]:
    for step in steps:
        trial.take(*step)
    trial.finish()
    return trial.log


class Trial:
    """One run, and its log."""

    def __init__(self, *, by_rules: bool = False) -> None:
        # All payloads of plain jobs stay in memory, whichever way the jobs took; and commits are
        # put off equally, which the rules alone never do for long.
        self.desk = Desk(check_invariants=True, payload_bytes_max=PLAIN_BYTES_MAX, long_ride_ms=5.0)
        if by_rules:
            self.desk.dispatcher.steps.clear()
        self.live = self.desk.store.live
        self.log: list[Any] = []
        self.ids: list[str] = []
        self.tokens: dict[str, str] = {}
        facts = Facts()
        self.tallies = Tallies(facts)
        self.packer = Packer(TermsBook(), None, 0)
        self.desk.dispatcher.on_batch.append(self.committed)
        self.desk.dispatcher.on_batch.append(facts.note)
        self.desk.dispatcher.on_notice.append(lambda news: self.log.append(("notice", news)))
        for name in CONNECTIONS:
            self.desk.dispatcher.on_signal[name] = self.hears(name)

    def hears(self, name: str) -> Callable[[Any], None]:
        return lambda signal: self.log.append(("signal", name, self.desk.now_ms, signal))

    def committed(self, batch: Batch, _: float) -> None:
        counters = Counters(batch.alive_at, self.live.serial, batch.last_seq, self.live.position)
        frame = self.packer.pack(batch, counters, Removals())
        jobs, rows = list(batch.jobs.items()), sorted(batch.rows)
        told = ("commit", self.desk.now_ms, jobs, batch.events, rows, what_is_written(frame))
        self.log.append(told)

    def take(self, word: str, one: int, two: int) -> None:
        getattr(self, word)(one, two)
        index = self.live
        self.log.append(
            (
                word,
                {name: dict(known.counts) for name, known in index.queues.items()},
                {name: [job.job_id for job in index.ready(name)] for name in index.queues},
                sorted(index.leased()),
                dict(index.due_entries),
                (index.unfinished_bytes, index.finished_bytes, index.serial, index.position),
                self.desk.dispatcher.owed_bytes,
            )
        )

    def finish(self) -> None:
        self.desk.run(COMMIT_MS * 20)
        assert not self.desk.failures, self.desk.failures
        check_index(self.live)
        self.log.append(("live", self.live.jobs))
        counts = self.desk.dispatcher.counts
        self.log.append((counts.commands, counts.answers, counts.jobs, counts.failures))
        self.log.append(dict(counts.refusals))
        figures = self.tallies
        self.log.append((figures.entered, figures.taken, figures.jobs_in, figures.jobs_out))
        self.log.append(figures.current)
        assert counts.failures == 0

    def ask(self, command: Command, *, wants: bool = True) -> None:
        def settle(reply: Reply) -> None:
            self.log.append(("reply", number, self.desk.now_ms, reply))

        number = len(self.log)
        if wants:
            self.desk.dispatcher.ask(command, settle)
        else:
            self.desk.dispatcher.ask(command, None, lambda: settle)

    # Choosing.

    def new_id(self) -> str:
        self.ids.append(self.desk.ids.job_id(self.desk.clock.now()))
        return self.ids[-1]

    def any_id(self, number: int) -> str:
        return self.ids[-1 - number % min(len(self.ids), 12)] if self.ids else "f" * 32

    def leased(self, number: int) -> Job | None:
        jobs = [self.live.live_job(job_id) for job_id in self.live.leased()]
        found = [job for job in jobs if job is not None and job.lease is not None]
        return found[number % len(found)] if found else None

    def proof(self, job: Job, number: int) -> Any:
        lease = job.lease
        assert lease is not None
        match number % 8:
            case 0:
                return ByToken("no such token")
            case 1:
                return ByAnyone("somebody")
            case 2 | 3:
                return ByHolder(lease.holder.realm, lease.holder.name, lease.holder.address)
            case 4:
                return ByHolder("native", "adopts", lease.holder.address)
            case 5 if lease.connection is not None:
                return ByConnection(lease.connection)
            case _:
                return ByToken(lease.token)

    def holder(self, number: int) -> Holder:
        names = ("w1", "w2", None)
        return Holder(REALMS[number % 2], names[number % 3], "127.0.0.1")

    # Steps.

    def plain_item(self, one: int, two: int, **fields: Any) -> NewJob:
        realm = REALMS[two % len(REALMS)]
        values: dict[str, Any] = {
            "job_id": self.new_id(),
            "queue": QUEUES[one % len(QUEUES)],
            "payload": b"x" * (PLAIN_BYTES_MAX + 1 if two % 19 == 0 else one % 90),
            "terms": TERMS[realm],
            "origin": Origin(realm, "", "127.0.0.1"),
            "priority": (0.0, 0.0, 0.0, 10.0, -10.0)[two % 5],
            "unique_key": b"key %d" % (two % 7) if one % 3 == 0 else None,
        }
        if one % 5 == 0:
            values |= {"durable_interest": False, "waiter": CONNECTIONS[two % 3]}
        return NewJob(**values | fields)

    def submit(self, one: int, two: int) -> None:
        item = self.plain_item(one, two)
        self.ask(Submit((item,), early=not item.durable_interest), wants=two % 4 != 0)

    def submit_at_once(self, one: int, two: int) -> None:
        """As a session does that only needs ids, and asks if there are none."""
        has_rare = one % 7 == 0  # which may be wanted without a waiter, and so is never early
        is_early = one % 2 == 0 and not has_rare
        fields = {"durable_interest": False, "waiter": CONNECTIONS[two % 3]} if is_early else {}
        items = [self.plain_item(one + step, two, **fields) for step in range(1 + two % 3)]
        if has_rare:
            items.append(self.rare_item(two, one))
        number = len(self.log)

        def settle(reply: Reply | list[str]) -> None:
            if isinstance(reply, SubmittedMany):
                told = [
                    item.job.job_id if isinstance(item, Submitted) else item for item in reply.items
                ]
            else:
                told = reply
            self.log.append(("ids", number, self.desk.now_ms, told))

        if not self.desk.dispatcher.submit_at_once(items, settle, early=is_early):
            command = Submit(tuple(items), early=is_early, requests_count=len(items))
            self.desk.dispatcher.ask(command, settle)

    def rare_item(self, one: int, two: int) -> NewJob:
        now = self.desk.clock.now()
        unknown = OnUnknownDependency.SATISFIED
        rarities: tuple[dict[str, Any], ...] = (
            {"delay_ms": two % 60},
            {"run_at": now + two % 60},
            {"deadline_at": now + 1 + two % 200},
            {"tags": ("t",)},
            {"limits": ("l",)},
            {"name": f"n{two % 4}", "namespace": "ns"},
            {"namespace": "ns"},
            {"depends_on": (self.any_id(two),), "on_unknown_dependency": unknown},
            {"id_chosen": True},
            {"id_chosen": True, "job_id": self.any_id(two)},
            {"id_chosen": True, "job_id": self.any_id(two), "on_existing": OnExisting.KEEP},
            {"id_chosen": True, "job_id": "abc", "unless_scheduled": True},
            {"id_chosen": True, "job_id": "NO ID"},
            {"on_duplicate": OnDuplicate.REPLACE, "unique_key": b"key 1"},
            {"on_duplicate": OnDuplicate.REFUSE, "unique_key": b"key 1"},
            {"unique_key": b""},
            {"priority": float("nan")},
            {"metadata": b"{}"},
            {"submitted_at": now - 5},
            {"queue": f"new {two % 3}"},
            {"queue": ""},
        )
        return self.plain_item(one, two, **rarities[one % len(rarities)])

    def submit_rarely(self, one: int, two: int) -> None:
        once = Once(f"once {two % 3}", "x") if one % 11 == 0 else None
        self.ask(Submit((self.rare_item(one, two),), once=once))

    def submit_many(self, one: int, two: int) -> None:
        items = [self.plain_item(one + step, two + step * 3) for step in range(1 + one % 4)]
        if two % 3 == 0:
            items.append(self.rare_item(two, one))
        self.ask(Submit(tuple(items), all_or_nothing=two % 2 == 0))

    def a_claim(self, one: int, two: int, count: int = 1, **fields: Any) -> Claim:
        bound = one % 3 != 0
        values: dict[str, Any] = {
            "queues": (QUEUES[one % len(QUEUES)],),
            "holder": self.holder(two),
            "tokens": tuple(self.desk.ids.token() for _ in range(count)),
            "term_ms": (None, 0, 25)[two % 3],
            "connection": CONNECTIONS[two % 3] if bound else None,
            "early": one % 2 == 0,
        }
        return Claim(**values | fields)

    def claim(self, one: int, two: int) -> None:
        self.ask(self.a_claim(one, two))

    def claim_at_once(self, one: int, two: int) -> None:
        """As a session does that can use the answer of a call, and asks if there is none."""
        number, queue, token = len(self.log), QUEUES[one % 3], self.desk.ids.token()
        holder, connection = self.holder(two), CONNECTIONS[two % 3]
        job = self.desk.dispatcher.claim_at_once(queue, holder, token, connection)
        if job is not None:
            self.log.append(("reply", number, self.desk.now_ms, Claimed((job_of(job),))))
            return
        self.ask(
            Claim(
                queues=(queue,), holder=holder, tokens=(token,), connection=connection, early=True
            )
        )

    def claim_many(self, one: int, two: int) -> None:
        self.ask(self.a_claim(one, two, count=two % 5))

    def claim_rarely(self, one: int, two: int) -> None:
        queues = (*QUEUES[one % 3 :], *QUEUES[: two % 3], "unknown")
        order = (ClaimOrder.LISTED, ClaimOrder.PRIORITY_IN_TURNS)[two % 2]
        rarities: tuple[dict[str, Any], ...] = (
            {"job_id": self.any_id(two)},
            {"term_of_job": True},
            {"report_drained": ReportDrained.ALWAYS},
            {"queues": queues, "order": order, "turn": one % len(queues)},
            {"queues": queues, "order": order, "terms_ms": tuple(range(len(queues)))},
            {"queues": ()},
            {"tokens": ()},
        )
        self.ask(self.a_claim(one, two, **rarities[one % len(rarities)]))

    def a_complete(self, one: int, two: int, **fields: Any) -> Complete:
        job = self.leased(one)
        if job is None:
            return Complete(**{"job_id": self.any_id(one), "proof": ByToken("none")} | fields)
        result = (None, b"", b"y" * 20, b"y" * (PLAIN_BYTES_MAX + 1))[one % 4]
        name = job.name if one % 2 == 0 else None
        job_id = job.job_id if name is None else f"{job.namespace}\0{name}"
        return Complete(
            **{"job_id": job_id, "proof": self.proof(job, two), "result": result} | fields
        )

    def complete(self, one: int, two: int) -> None:
        self.ask(self.a_complete(one, two), wants=one % 3 == 0)

    def complete_at_once(self, one: int, two: int) -> None:
        job = self.leased(one)
        job_id = self.any_id(one) if job is None else job.job_id
        proof = ByToken("none") if job is None else self.proof(job, two)
        result = b"y" * (one % 20)
        if not self.desk.dispatcher.complete_at_once(job_id, proof, result):
            self.ask(Complete(job_id=job_id, proof=proof, result=result), wants=False)

    def complete_rarely(self, one: int, two: int) -> None:
        rarities: tuple[dict[str, Any], ...] = (
            {"note": "a note"},
            {"next_queue": QUEUES[two % 3]},
            {"next_queue": "next", "delay_ms": 10},
            {"delay_ms": 10},
            {"replaces_payload": True},
            {"queue": QUEUES[two % 3]},
            {"depends_on": (self.any_id(two),)},
            {"job_id": self.any_id(two)},
            {"repeated_exactly": True},
        )
        self.ask(self.a_complete(one, two, **rarities[one % len(rarities)]))

    def conclude(self, one: int, two: int) -> None:
        items: list[Complete | Fail] = [
            self.a_complete(one + step, 7 if two % 3 else two + step) for step in range(two % 4)
        ]
        if one % 5 == 0:
            items.append(self.a_fail(one, two))
        self.ask(Conclude(tuple(items)))

    def a_fail(self, one: int, two: int) -> Fail:
        job = self.leased(one)
        job_id = job.job_id if job is not None else self.any_id(one)
        proof = self.proof(job, two) if job is not None else ByToken("none")
        delay_ms = (None, 0, 15)[two % 3]
        failure = Failure("broken", "it broke")
        return Fail(
            job_id=job_id, proof=proof, failure=failure, retry=one % 2 == 0, delay_ms=delay_ms
        )

    def fail(self, one: int, two: int) -> None:
        self.ask(self.a_fail(one, two), wants=one % 2 == 0)

    def release(self, one: int, two: int) -> None:
        job = self.leased(one)
        if job is not None:
            self.ask(Release(job_id=job.job_id, proof=self.proof(job, two)))

    def renew(self, one: int, two: int) -> None:
        job = self.leased(one)
        if job is not None:
            self.ask(Renew(job_id=job.job_id, proof=self.proof(job, two), term_ms=two % 40 or None))

    def report(self, one: int, two: int) -> None:
        job = self.leased(one)
        if job is not None:
            proof = self.proof(job, two)
            self.ask(Report(job_id=job.job_id, proof=proof, numerator=1, denominator=2))

    def cancel(self, one: int, two: int) -> None:
        self.ask(Cancel(job_ids=(self.any_id(one),), with_dependants=two % 2 == 0))

    def requeue(self, one: int, two: int) -> None:
        self.ask(Requeue(job_id=self.any_id(one), delay_ms=(0, 0, 20)[two % 3]))

    def move(self, one: int, two: int) -> None:
        self.ask(Move(job_id=self.any_id(one), queue=QUEUES[two % 3]))

    def priority(self, one: int, two: int) -> None:
        self.ask(SetPriority(self.any_id(one), float(two % 3)))

    def tags(self, one: int, _: int) -> None:
        self.ask(SetTags(self.any_id(one), add=("more",)))

    def depend(self, one: int, two: int) -> None:
        self.ask(SetDependencies(job_id=self.any_id(one), add=(self.any_id(two),)))

    def attach(self, one: int, two: int) -> None:
        self.ask(Attach(job_id=self.any_id(one), waiter=CONNECTIONS[two % 3]))

    def detach(self, one: int, _: int) -> None:
        self.ask(Detach(CONNECTIONS[one % 3]), wants=False)

    def depart(self, one: int, two: int) -> None:
        if two % 3 == 0:
            self.ask(Depart(holder=self.holder(one)), wants=False)
        else:
            self.ask(Depart(connection=CONNECTIONS[one % 3]), wants=False)

    def queue(self, one: int, two: int) -> None:
        """Mostly the third queue: the others stay plain for long."""
        queue = QUEUES[one % 3 if two % 12 == 0 else 2]
        if one % 3:
            self.ask(SetQueue(queue=queue, policy=POLICIES[two % len(POLICIES)]))
        else:
            self.ask(SetQueue(queue=queue, paused=two % 3 == 0))

    def limit(self, _: int, two: int) -> None:
        self.ask(SetLimit("l", 1 + two % 2))

    def forget(self, one: int, _: int) -> None:
        self.ask(ForgetQueue(QUEUES[one % 3]))

    def look(self, one: int, two: int) -> None:
        self.ask(Look(self.any_id(one), brief=two % 2 == 0))

    def expire(self, one: int, _: int) -> None:
        self.ask(ExpireLease(self.any_id(one)))

    def sleep(self, one: int, two: int) -> None:
        def wake(queue: str) -> None:
            self.log.append(("woken", self.desk.now_ms, number, queue))

        number = len(self.log)
        queues = None if two % 5 == 0 else (QUEUES[one % 3], QUEUES[two % 3])
        self.desk.dispatcher.sleepers.sleep(Sleeper(queues, wake))

    def wait(self, one: int, _: int) -> None:
        self.desk.run(1 + one % 15)

    def wait_long(self, one: int, _: int) -> None:
        self.desk.run(COMMIT_MS * 2 + one % 60)
