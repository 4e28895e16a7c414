"""Those who use the server: submitters, workers of four kinds, operators. Seeded, not sensible."""

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from manyhands.dispatch.sleepers import Sleeper
from manyhands.model import commands as c
from manyhands.model.events import Cursor, Signal
from manyhands.model.job import EndReason, Failure, Holder, Job, Schedule
from manyhands.model.payload import Encoding
from manyhands.model.policy import (
    DEFAULTS,
    Backoff,
    OnDependencyFailure,
    OnDuplicate,
    OnExpiry,
    OnUnknownDependency,
    QueuePolicy,
    Rate,
    Reentry,
    Terms,
)
from manyhands.model.replies import Changed, Claimed, Refusal, Reply, Submitted, SubmittedMany

if TYPE_CHECKING:
    from tests.simulation.simulate import Simulation

_BACKOFF = Backoff(first_ms=50, factor=2.0, ms_max=2_000)
TERMS = (
    Terms(DEFAULTS["gearman"], backoff=_BACKOFF),
    Terms(DEFAULTS["native"], backoff=_BACKOFF, attempts_max=2),
    Terms(DEFAULTS["http"], backoff=_BACKOFF, attempts_max=2, lease_ms=2_000),
    Terms(DEFAULTS["http"], backoff=_BACKOFF, lease_ms=4_000),
    Terms(DEFAULTS["dwork"], backoff=_BACKOFF),
    Terms(DEFAULTS["taskcluster"], backoff=_BACKOFF, attempt_ms_max=9_000),
    Terms(DEFAULTS["wmp"], backoff=_BACKOFF, reentry=Reentry.FRONT, result_ms=0),
    Terms(
        DEFAULTS["native"],
        backoff=_BACKOFF,
        on_dependency_failure=OnDependencyFailure.RUN,
        on_expiry=OnExpiry.LAPSE,
    ),
)
OPEN_TERMS = TERMS[4]
LIMITS = ("licences", "printers")


class Connection:
    """A peer and one server process. What is sent arrives in order, or not at all."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.server = simulation.server
        self.name = self.server.ids.connection()
        self.open = True
        self.outstanding: deque[int] = deque()  # asked and not answered, in order
        self._asked = 0
        self._arrives_us = 0
        self._returns_us = 0
        self.server.dispatcher.on_signal[self.name] = self.heard
        self.on_signal: Callable[[Signal], None] | None = None

    def is_usable(self) -> bool:
        return self.open and self.server is self.simulation.server and self.server.ready

    def ask(self, command: c.Command, on_reply=None, *, owed: bool = True) -> None:
        """Send a command. ``owed`` False: only a refusal is answered."""
        self.send(lambda: self._deliver(command, on_reply, owed=owed))

    def send(self, what: Callable[[], None]) -> None:
        time, rng = self.simulation.time, self.simulation.rng
        self._arrives_us = max(self._arrives_us, time.now_us + rng.randint(50, 3_000))
        self.server.loop.arrive(self._arrives_us - time.now_us, what)

    def _deliver(self, command: c.Command, on_reply, *, owed: bool) -> None:
        self._asked += 1
        number = self._asked
        early = isinstance(command, c.Claim | c.Submit) and command.early
        if owed and not early:
            self.outstanding.append(number)

        def settle(reply: Reply) -> None:
            if owed and not early and self.server.dispatcher.failed is None:
                self.simulation.require(
                    self.outstanding[0] == number, "an answer overtook another one"
                )
                self.outstanding.popleft()
                if self.simulation.rng.random() < 0.05:
                    # A session that has more to ask as soon as it hears.
                    self._deliver(
                        c.Look(self.simulation.any_id(self.simulation.rng)), None, owed=True
                    )
            if on_reply is not None:
                self.back(lambda: on_reply(reply))

        self.simulation.ask(command, settle, owed=owed)

    def back(self, what: Callable[[], None]) -> None:
        """From the server to the peer."""
        time, rng = self.simulation.time, self.simulation.rng
        self._returns_us = max(self._returns_us, time.now_us + rng.randint(50, 3_000))
        time.at(self._returns_us, lambda: what() if self.open else None)

    def heard(self, signal: Signal) -> None:
        self.simulation.heard(signal)
        if self.on_signal is not None:
            self.on_signal(signal)

    def close(self) -> None:
        """Cut: the server hears of it a little later, unless it is gone itself."""
        if self.open:
            self.open = False
            self.send(self._cut)

    def _cut(self) -> None:
        self.server.dispatcher.on_signal.pop(self.name, None)
        self.simulation.ask(c.Depart(connection=self.name, reason=EndReason.LOST), None)
        self.simulation.ask(c.Detach(self.name), None)


class Actor:
    """Does something now and then."""

    pause_us = (5_000, 400_000)

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.rng = random.Random(simulation.rng.getrandbits(64))
        self.connection: Connection | None = None
        self.rest()

    def rest(self) -> None:
        low, high = self.pause_us
        self.simulation.time.after(self.rng.randint(low, high), self._turn)

    def _turn(self) -> None:
        simulation = self.simulation
        if simulation.is_over:
            return
        simulation.steps_done += 1
        if simulation.server.ready:
            if self.connection is None or not self.connection.is_usable():
                self.connection = Connection(simulation)
                self.connected()
            self.act()
        self.rest()

    def connected(self) -> None:
        """A new connection."""

    def act(self) -> None:
        raise NotImplementedError

    def ask(self, command: c.Command, on_reply=None, *, owed: bool = True) -> None:
        assert self.connection is not None
        self.connection.ask(command, on_reply, owed=owed)


class Submitter(Actor):
    """Hands in work, and sometimes waits for it."""

    def act(self) -> None:
        simulation, rng = self.simulation, self.rng
        if simulation.faults_over:
            return
        kind = rng.random()
        if kind < 0.05 and self.connection is not None:
            self.connection.close()
        elif kind < 0.15:
            self._submit_graph()
        elif kind < 0.2:
            self._look()
        elif kind < 0.24:
            self._attach()
        elif kind < 0.27:
            self._schedule()
        elif kind < 0.29:
            self._read_on()
        else:
            count = 1 if rng.random() < 0.8 else rng.randint(2, 5)
            items = tuple(self._item() for _ in range(count))
            together, early = rng.random() < 0.3, rng.random() < 0.3
            self.ask(c.Submit(items, together, early), self._submitted)

    def _item(self) -> c.NewJob:
        simulation, rng = self.simulation, self.rng
        fields: dict[str, object] = {}
        if rng.random() < 0.25:
            fields["unique_key"] = f"key-{rng.randint(1, 4)}".encode()
            fields["on_duplicate"] = rng.choice(list(OnDuplicate))
        if rng.random() < 0.2:
            fields["delay_ms"] = rng.choice((1, 40, 700, 5_000))
        elif rng.random() < 0.05:
            fields["run_at"] = simulation.server.clock.now() + rng.randint(-500, 3_000)
        if rng.random() < 0.1:
            fields["deadline_at"] = simulation.server.clock.now() + rng.randint(100, 8_000)
        if rng.random() < 0.2:
            fields["tags"] = tuple(rng.sample(("red", "green", "blue"), rng.randint(1, 2)))
        if rng.random() < 0.1:
            fields["limits"] = tuple(rng.sample(LIMITS, rng.randint(1, 2)))
        if rng.random() < 0.25 and simulation.known_ids:
            fields["depends_on"] = tuple(
                rng.choice(simulation.known_ids) for _ in range(rng.randint(1, 3))
            )
            if rng.random() < 0.1:
                fields["depends_on"] = (*fields["depends_on"], "ab" * rng.randint(1, 6))
            fields["on_unknown_dependency"] = rng.choice(list(OnUnknownDependency))
        if rng.random() < 0.2:
            assert self.connection is not None
            fields["waiter"] = self.connection.name
            fields["durable_interest"] = rng.random() < 0.3
        job_id = simulation.server.ids.job_id(simulation.server.clock.now())
        if rng.random() < 0.1:
            job_id = f"{rng.randint(1, 12):x}"
            fields["id_chosen"] = True
            fields["on_existing"] = rng.choice(list(c.OnExisting))
        return c.NewJob(
            job_id=job_id,
            queue=simulation.any_queue(rng),
            payload=rng.randbytes(rng.choice((0, 3, 40))),
            encoding=rng.choice(list(Encoding)),
            terms=rng.choice(TERMS),
            priority=rng.choice((0.0, 0.0, 0.0, 10.0, -10.0, 0.5)),
            metadata=b"{}" if rng.random() < 0.1 else b"",
            **fields,  # type: ignore[arg-type]
        )

    def _submit_graph(self) -> None:
        """Named jobs that depend on each other, forward references included."""
        simulation, rng = self.simulation, self.rng
        namespace = f"graph-{rng.randint(1, 3)}"
        names = [f"step {rng.randint(1, 30)}" for _ in range(rng.randint(1, 5))]
        terms = OPEN_TERMS if rng.random() < 0.7 else rng.choice(TERMS)
        together = rng.random() < 0.5
        items = tuple(
            c.NewJob(
                job_id=simulation.server.ids.job_id(simulation.server.clock.now()),
                queue=simulation.any_queue(rng),
                terms=terms,
                namespace=namespace,
                name=name,
                depends_on=tuple(self._any_step() for _ in range(rng.randint(0, 3))),
                on_unknown_dependency=(
                    OnUnknownDependency.WAIT
                    if rng.random() < 0.5
                    else OnUnknownDependency.SATISFIED
                ),
                on_existing=rng.choice(
                    (c.OnExisting.REFUSE, c.OnExisting.ADD_DEPENDENCIES, c.OnExisting.MOVE)
                ),
            )
            for name in names
        )
        self.ask(c.Submit(items, all_or_nothing=together), self._submitted)

    def _any_step(self) -> str:
        """A name, which may mean nothing yet; now and then the id of a job that has none."""
        number = self.rng.randint(1, 30)
        if number > 28:
            return self.simulation.any_id(self.rng)
        return f"step {number}"

    def _submitted(self, reply: Reply) -> None:
        if isinstance(reply, SubmittedMany):
            for item in reply.items:
                if isinstance(item, Submitted):
                    self.simulation.known_ids.append(item.job.job_id)

    def _look(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            self.ask(c.Look(self.simulation.any_id(rng)))
        elif kind < 0.7:
            key = f"key-{rng.randint(1, 4)}".encode()
            self.ask(c.LookByKey(key, self.simulation.any_queue(rng) if kind < 0.6 else None))
        else:
            self.ask(c.LookByName(f"graph-{rng.randint(1, 3)}", f"step {rng.randint(1, 30)}"))

    def _attach(self) -> None:
        assert self.connection is not None
        waiter = self.connection.name if self.rng.random() < 0.7 else None
        job_id = self.simulation.any_id(self.rng)
        self.ask(c.Attach(job_id=job_id, waiter=waiter, durable=waiter is None))

    def _read_on(self) -> None:
        name = f"reader-{self.rng.randint(1, 2)}"
        if self.rng.random() < 0.2:
            self.ask(c.RemoveCursor(name))
        else:
            seq = self.simulation.server.dispatcher.events.last_seq
            self.ask(c.SetCursor(Cursor(name, seq, "so far")))

    def _schedule(self) -> None:
        rng, now = self.rng, self.simulation.server.clock.now()
        schedule_id = f"schedule-{rng.randint(1, 3)}"
        if rng.random() < 0.3:
            self.ask(c.RemoveSchedule(schedule_id))
            return
        cron = rng.random() < 0.3
        schedule = Schedule(
            schedule_id=schedule_id,
            queue=self.simulation.any_queue(rng),
            interval_ms=None if cron else rng.randint(500, 5_000),
            cron="* * * * *" if cron else None,
            time_zone="Europe/Berlin",
            next_at=now + rng.randint(-5_000, 3_000),
            backlog_max=rng.randint(1, 3),
            unique=rng.random() < 0.5,
            terms=rng.choice(TERMS),
            limits=LIMITS[:1] if rng.random() < 0.2 else (),
        )
        self.ask(c.PutSchedule(schedule))


class Worker(Actor):
    """Claims, works, and misbehaves in every way that workers know."""

    realm = "native"
    early = False
    bound = False
    owed = True  # a completion is answered
    report_drained = c.ReportDrained.NEVER

    def __init__(self, simulation: "Simulation", name: str) -> None:
        super().__init__(simulation)
        self.name = name
        self.address = f"10.0.0.{self.rng.randint(1, 9)}"
        self.jobs: dict[str, Job] = {}
        self.old: list[Job] = []  # held once; the lease may be dead
        self.sleeper: Sleeper | None = None
        self.quiet = 0  # turns of silence left
        self.is_honest = False
        self.turn = 0

    def connected(self) -> None:
        # A worker that cannot prove anything over a new connection forgets what it had.
        self.sleeper = None
        if self.bound:
            self.old.extend(self.jobs.values())
            self.jobs.clear()
        else:
            self.is_honest = False  # what it was given last it may never have heard of

    def act(self) -> None:
        rng, honest = self.rng, self.simulation.faults_over
        if honest and not self.is_honest:
            self._begin_anew()
            return
        if self.quiet and not honest:
            self.quiet -= 1
            return
        if not self.jobs and self.sleeper is not None and self.sleeper.asleep:
            return
        if self.jobs:
            job_id = rng.choice(list(self.jobs))
            self._work(self.jobs[job_id])
            return
        if self.old and not honest and rng.random() < 0.2:
            self._complete(self.old.pop(rng.randrange(len(self.old))))  # too late, perhaps
            return
        if not honest and rng.random() < 0.03:
            self._leave()
            return
        self._claim()

    def _claim(self) -> None:
        simulation, rng = self.simulation, self.rng
        ids = simulation.server.ids
        queues = tuple(rng.sample(simulation.queues, rng.randint(1, len(simulation.queues))))
        if simulation.faults_over:
            queues = tuple(simulation.all_queues())
        self.turn += 1
        command = c.Claim(
            queues=queues,
            holder=self.holder(),
            tokens=tuple(ids.token() for _ in range(rng.choice((1, 1, 1, 2, 4)))),
            order=rng.choice(list(c.ClaimOrder)),
            turn=self.turn,
            term_ms=self.term_ms(),
            term_of_job=self.realm == "http",
            connection=self.connection.name if self.bound and self.connection else None,
            job_id=simulation.any_id(rng) if rng.random() < 0.03 else None,
            early=self.early,
            report_drained=self.report_drained,
        )
        connection = self.connection
        assert connection is not None

        def told(reply: Reply) -> None:
            if isinstance(reply, Claimed) and not reply.jobs and command.job_id is None:
                if rng.random() < 0.7:
                    # A held request: it sleeps from the very answer on.
                    self._sleep(connection, queues)
                else:
                    # Asked for in a message of its own, which may meet new work.
                    connection.back(lambda: connection.send(lambda: self._nap(connection, queues)))
                return
            connection.back(lambda: self._claimed(reply))

        simulation_ask = simulation.ask
        connection.send(lambda: simulation_ask(command, told))

    def _nap(self, connection: Connection, queues: tuple[str, ...]) -> None:
        if self.bound:
            self.simulation.ask(c.LiftTerms(connection.name), None)
        if not connection.server.dispatcher.has_work(queues):
            self._sleep(connection, queues)

    def _sleep(self, connection: Connection, queues: tuple[str, ...]) -> None:
        if not connection.open or (self.sleeper is not None and self.sleeper.asleep):
            return
        self.sleeper = Sleeper(queues, lambda queue: self._woken(connection, queue))
        connection.server.sleepers[self.sleeper] = None
        connection.server.dispatcher.sleepers.sleep(self.sleeper)

    def _woken(self, connection: Connection, queue: str) -> None:
        simulation = self.simulation
        for name in self.sleeper.queues if self.sleeper else (queue,):
            simulation.woken_at[name] = simulation.time.now_us / 1000
        simulation.count("wake")
        connection.back(lambda: self._claim() if connection.is_usable() else None)

    def _claimed(self, reply: Reply) -> None:
        if isinstance(reply, Claimed):
            for job in reply.jobs:
                self.jobs[job.job_id] = job

    def _work(self, job: Job) -> None:
        rng, simulation = self.rng, self.simulation
        proof = self.proof(job)
        job_id = job.job_id
        kind = rng.random() if not simulation.faults_over else 0.5
        if kind < 0.08:
            term_ms = rng.choice((None, 3_000))
            self.ask(c.Renew(job_id=job_id, proof=proof, term_ms=term_ms), self._lost(job))
            if not self.bound and self.turn % 2:
                self.ask(c.RenewHeld((self.holder(), Holder(self.realm, "nobody")), 2))
        elif kind < 0.16:
            command = c.Report(
                job_id=job_id, proof=proof, numerator=rng.randint(0, 9), denominator=9
            )
            self.ask(command, self._lost(job), owed=self.owed)
        elif kind < 0.22:
            piece = rng.randbytes(5)
            warning = rng.random() < 0.3
            command = c.SendPartial(job_id=job_id, proof=proof, payload=piece, warning=warning)
            self.ask(command, self._lost(job), owed=self.owed)
        elif kind < 0.68:
            self._complete(job)
        elif kind < 0.73:
            self._complete_into(job)
        elif kind < 0.83:
            command = c.Fail(
                job_id=job_id,
                proof=proof,
                failure=Failure("broken", "it\nbroke"),
                retry=rng.random() < 0.7,
                delay_ms=rng.choice((None, 0, 30)),
            )
            self.jobs.pop(job_id)
            self.old.append(job)
            self.ask(command)
        elif kind < 0.88:
            self._release(job)
        elif kind < 0.94:
            self.quiet = rng.randint(5, 60)
        elif kind < 0.97:
            self._leave()
        else:
            self.jobs.pop(job_id)  # forgotten, without a word
            self.old.append(job)

    def _lost(self, job: Job):
        def told(reply: Reply) -> None:
            if isinstance(reply, Refusal) and self.jobs.get(job.job_id) is job:
                self.old.append(self.jobs.pop(job.job_id))

        return told

    def _complete(self, job: Job) -> None:
        self.jobs.pop(job.job_id, None)
        result = self.rng.randbytes(4) if self.rng.random() < 0.8 else None
        command = c.Complete(
            job_id=job.job_id,
            proof=self.proof(job),
            result=result,
            replaces_payload=self.realm == "http",
        )

        def told(reply: Reply) -> None:
            if isinstance(reply, Changed) and self.rng.random() < 0.1:
                self.ask(command)  # once more: the answer might have got lost

        self.ask(command, told, owed=self.owed)

    def _complete_into(self, job: Job) -> None:
        rng, simulation = self.rng, self.simulation
        self.jobs.pop(job.job_id, None)
        command = c.Complete(
            job_id=job.job_id,
            proof=self.proof(job),
            result=b"next",
            next_queue=simulation.any_queue(rng),
            delay_ms=rng.choice((0, 0, 200)),
            depends_on=(simulation.any_id(rng),) if rng.random() < 0.2 else (),
        )
        self.ask(command)

    def _release(self, job: Job) -> None:
        rng, simulation = self.rng, self.simulation
        ids = [job.job_id]
        if rng.random() < 0.5:
            ids = list(self.jobs)
        items = tuple(
            c.Release(
                job_id=job_id,
                proof=self.proof(self.jobs[job_id]),
                reentry=rng.choice((None, *Reentry)),
                depends_on=(simulation.any_id(rng),) if rng.random() < 0.3 else (),
            )
            for job_id in ids
        )
        for job_id in ids:
            self.old.append(self.jobs.pop(job_id))
        self.ask(items[0] if len(items) == 1 else c.ReleaseAll(items))

    def _leave(self) -> None:
        """Cut the connection, or say goodbye."""
        assert self.connection is not None
        self.quiet = self.rng.randint(0, 10)
        if not self.bound and self.rng.random() < 0.4:
            reason = self.rng.choice((EndReason.GOODBYE, EndReason.LOST))
            count_max = 1 if self.turn % 2 else None  # what it had besides stays with it
            died = Failure("worker_died", "gone")
            failed = tuple(
                c.Fail(job_id=job.job_id, proof=self.proof(job), failure=died, retry=True)
                for job in list(self.jobs.values())[: self.turn % 3]
            )
            self.ask(
                c.Depart(holder=self.holder(), reason=reason, count_max=count_max, failed=failed)
            )
            self.old.extend(self.jobs.values())
            self.jobs.clear()
        else:
            sleeper, server = self.sleeper, self.connection.server
            self.connection.send(lambda: sleeper and server.dispatcher.sleepers.leave(sleeper))
            self.connection.close()

    def _begin_anew(self) -> None:
        """The faults are over: what it forgot goes back, and from now on it behaves."""
        assert self.connection is not None

        def told(_: Reply) -> None:
            self.is_honest = True

        self.jobs.clear()
        if self.bound:
            self.is_honest = True
            self.connection.close()
        else:
            self.ask(c.Depart(holder=self.holder(), reason=EndReason.GOODBYE), told)

    def holder(self) -> Holder:
        return Holder(self.realm, self.name, self.address)

    def term_ms(self) -> int | None:
        return self.rng.choice((1_500, 4_000, 6_000, 10_000))

    def proof(self, job: Job) -> c.Proof:
        assert job.lease is not None
        return c.ByToken(job.lease.token)


class BoundWorker(Worker):
    """Its leases end with its connection, and its claims are answered early."""

    realm = "gearman"
    early = True
    bound = True
    owed = False

    def term_ms(self) -> int | None:
        return self.rng.choice((None, None, 4_000))

    def proof(self, job: Job) -> c.Proof:  # noqa: ARG002 - the connection is proof enough
        assert self.connection is not None
        return c.ByConnection(self.connection.name)


class NamedWorker(Worker):
    """Known by its name, or by its address until it tells its name."""

    realm = "http"

    def holder(self) -> Holder:
        name = None if self.rng.random() < 0.3 else self.name
        return Holder(self.realm, name, f"{self.address}/{self.name}")

    def proof(self, job: Job) -> c.Proof:  # noqa: ARG002 - the name is proof enough
        return c.ByHolder(self.realm, self.name, f"{self.address}/{self.name}")


class OpenWorker(Worker):
    """Its jobs may be completed by anybody."""

    realm = "dwork"
    early = True
    report_drained = c.ReportDrained.KNOWN

    def term_ms(self) -> int | None:
        return None

    def proof(self, job: Job) -> c.Proof:
        assert job.lease is not None
        if self.rng.random() < 0.2 and not self.simulation.faults_over:
            return c.ByAnyone(self.name)
        return c.ByHolder(self.realm, job.lease.holder.name, self.address)

    def _complete(self, job: Job) -> None:
        if len(self.jobs) < 2 or self.rng.random() < 0.3:
            super()._complete(job)
            return
        jobs = [*self.jobs.values(), *self.old[-1:]]  # one of them too late, perhaps
        self.jobs.clear()
        broken = Failure("broken", "it broke")
        self.ask(
            c.Conclude(
                tuple(
                    c.Complete(job_id=job.job_id, proof=self.proof(job), result=b"all")
                    if self.rng.random() < 0.8
                    else c.Fail(job_id=job.job_id, proof=self.proof(job), failure=broken)
                    for job in jobs
                )
            )
        )

    def _claimed(self, reply: Reply) -> None:
        super()._claimed(reply)
        if self.jobs and self.rng.random() < 0.05 and not self.simulation.faults_over:
            self.simulation.vanished.append(self.holder())
            self.name = f"{self.name}'"
            self.old.extend(self.jobs.values())
            self.jobs.clear()


class Operator(Actor):
    """Pauses, moves, cancels, and changes its mind."""

    def act(self) -> None:  # noqa: C901 - a list of deeds
        simulation, rng = self.simulation, self.rng
        if simulation.faults_over:
            self._clear_up()
            return
        queue, job_id = simulation.any_queue(rng), simulation.any_id(rng)
        choice = rng.randrange(12)
        match choice:
            case 0:
                self.ask(c.SetQueue(queue=queue, paused=rng.random() < 0.4))
            case 1:
                self.ask(c.SetQueue(queue=queue, policy=self._policy()))
            case 2:
                ids = tuple(simulation.any_id(rng) for _ in range(rng.randint(1, 3)))
                self.ask(c.Cancel(job_ids=ids, with_dependants=rng.random() < 0.5))
            case 3:
                target = queue if rng.random() < 0.3 else None
                self.ask(c.Requeue(job_id=job_id, queue=target, delay_ms=rng.choice((0, 300))))
            case 4:
                self.ask(c.Move(job_id=job_id, queue=queue, delay_ms=rng.choice((0, 300))))
            case 5:
                self.ask(c.SetPriority(job_id, rng.choice((0.0, 3.0, -2.0))))
            case 6:
                self.ask(c.SetTags(job_id, add=("odd",), remove=("red",)))
            case 7:
                self.ask(c.ExpireLease(simulation.any_leased(rng) or job_id))
            case 8:
                add = (simulation.any_id(rng),) if rng.random() < 0.6 else ()
                remove = (simulation.any_id(rng),) if rng.random() < 0.6 else ()
                self.ask(c.SetDependencies(job_id=job_id, add=add, remove=remove))
            case 9:
                limit, concurrency_max = rng.choice(LIMITS), rng.choice((None, 0, 1, 2))
                if concurrency_max is None:
                    self.ask(c.RemoveLimit(limit))
                else:
                    self.ask(c.SetLimit(limit, concurrency_max))
            case 10:
                self.ask(c.ForgetQueue(queue))
                self.ask(c.ForgetIdle(tuple(simulation.all_queues())))
            case _:
                self.ask(c.SetQueue(queue=queue, paused=False))

    def _policy(self) -> QueuePolicy:
        rng = self.rng
        return QueuePolicy(
            concurrency_max=rng.choice((None, None, 1, 3)),
            rate=rng.choice((None, None, Rate(2, 1_500))),
            grace_ms=rng.choice((0, 0, 400)),
            lease_ms=rng.choice((None, 2_000)),
            attempts_max=rng.choice((None, 3)),
            on_expiry=rng.choice((None, *OnExpiry)),
            jobs_max=rng.choice((None, None, 15)),
        )

    def _clear_up(self) -> None:
        """At the end: nothing holds work back any more, and what can never run is cancelled."""
        simulation = self.simulation
        index = simulation.server.store.live
        for name, known in index.queues.items():
            if known.queue.paused or known.queue.policy != QueuePolicy():
                self.ask(c.SetQueue(queue=name, paused=False, policy=QueuePolicy()))
        for name in list(index.limits):
            self.ask(c.RemoveLimit(name))
        for schedule_id in list(index.schedules):
            self.ask(c.RemoveSchedule(schedule_id))
        for holder in simulation.vanished:
            if index.leased_by_holder(holder):
                self.ask(c.Depart(holder=holder, reason=EndReason.GOODBYE))
        stuck = simulation.never_ready()
        if stuck:
            self.ask(c.Cancel(job_ids=tuple(stuck[:20])))
