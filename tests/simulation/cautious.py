"""Those who say what they expect: every condition of rule 28, met and not met, and rule 27."""

from manyhands.model import commands as c
from manyhands.model.job import Holder, Job, Schedule, State
from manyhands.model.policy import QueuePolicy
from manyhands.model.replies import Changed, Refusal, Reply, SubmittedMany, Why
from tests.copies import replace
from tests.simulation.actors import LIMITS, OPEN_TERMS, TERMS, Actor, NamedWorker

# What each condition refuses by. In some world each of them must have let something pass as well.
CONDITIONS = {
    "unless scheduled": Why.DUPLICATE_JOB,
    "once per queue": Why.ALREADY_COMPLETED,
    "unless job": Why.DUPLICATE_JOB,
    "cancelled too": Why.ALREADY_CANCELLED,
    "only idle": Why.NOT_IDLE,
    "repeated exactly": Why.ALREADY_COMPLETED,
    "remove limit": Why.UNKNOWN_LIMIT,
    "only known": Why.UNKNOWN_QUEUE,
    "offered": Why.QUEUE_IN_USE,
    "only scheduled": Why.UNKNOWN_SCHEDULE,
    "only: Cancel": Why.NO_LONGER_FITS,
    "only: ExpireLease": Why.NO_LONGER_FITS,
    "only: Move": Why.NO_LONGER_FITS,
    "only: Requeue": Why.NO_LONGER_FITS,
    "only: SetPriority": Why.NO_LONGER_FITS,
}
STRANDED = "stranded"  # a queue whose jobs wait in vain


def outcome_of(condition: str, reply: Reply) -> str:
    """For the counts of a world."""
    first = reply.items[0] if isinstance(reply, SubmittedMany) else reply
    if not isinstance(first, Refusal):
        return f"{condition}, passed"
    by_condition = first.why is CONDITIONS[condition]
    if condition == "unless scheduled" and first.job is not None:
        by_condition = False  # an unfinished job has that id
    return f"{condition}, {'refused' if by_condition else 'refused otherwise'}"


class Cautious(Actor):
    """Whatever fronts used to find out by looking first."""

    def act(self) -> None:
        rng = self.rng
        if self.simulation.faults_over or rng.random() < 0.2:
            self._ask_whether_drained()
            return
        rng.choice(
            (
                self._add,
                self._add_once,
                self._recur,
                self._requeue,
                self._depend,
                self._remove_limit,
                self._set_queue,
                self._strand,
                self._operate,
                self._operate,
                self._operate,
            )
        )()

    def _expect(self, condition: str, command: c.Command) -> None:
        self.ask(command, lambda reply: self.simulation.count(outcome_of(condition, reply)))

    def _new_job(self, job_id: str, **fields) -> c.NewJob:
        simulation, rng = self.simulation, self.rng
        return c.NewJob(
            job_id=job_id,
            queue=simulation.any_queue(rng),
            id_chosen=True,
            terms=rng.choice(TERMS),
            **fields,
        )

    def _add(self) -> None:
        number = self.rng.randint(1, 3)
        item = self._new_job(f"5c{number}", name=f"schedule-{number}", unless_scheduled=True)
        self._expect("unless scheduled", c.Submit((item,)))

    def _add_once(self) -> None:
        """Under ids that others choose as well."""
        item = self._new_job(
            f"{self.rng.randint(1, 12):x}",
            once_per_queue=True,
            on_existing=self.rng.choice((c.OnExisting.REFUSE, c.OnExisting.MOVE)),
        )
        self._expect("once per queue", c.Submit((item,)))

    def _recur(self) -> None:
        number = self.rng.randint(1, 3)
        schedule = Schedule(
            schedule_id=f"schedule-{number}",
            queue=self.simulation.any_queue(self.rng),
            interval_ms=3_000,
            next_at=self.simulation.server.clock.now() + 1_000,
            terms=self.rng.choice(TERMS),
        )
        if self.rng.random() < 0.3:
            switched = replace(schedule, paused=self.rng.random() < 0.3)
            self._expect("only scheduled", c.PutSchedule(switched, fields=("paused",)))
            return
        in_step = self.rng.random() < 0.5
        command = c.PutSchedule(schedule, unless_job=f"5c{number}", in_step=in_step)
        self._expect("unless job", command)

    def _requeue(self) -> None:
        job_id = self.simulation.any_id(self.rng)
        self._expect("cancelled too", c.Requeue(job_id=job_id, cancelled_too=False))

    def _depend(self) -> None:
        simulation, rng = self.simulation, self.rng
        job_id = simulation.any_id(rng)
        add = (simulation.any_id(rng),) if rng.random() < 0.5 else ()
        self._expect("only idle", c.SetDependencies(job_id=job_id, add=add, only_idle=True))

    def _remove_limit(self) -> None:
        self._expect("remove limit", c.RemoveLimit(self.rng.choice(LIMITS)))

    def _set_queue(self) -> None:
        """Some settings of a queue, perhaps of one that is forgotten now and then."""
        rng = self.rng
        queue = rng.choice((self.simulation.any_queue(rng), "passing"))
        if queue == "passing":
            if rng.random() < 0.5:
                self.ask(c.SetQueue(queue=queue))
            else:
                self._expect("offered", c.ForgetQueue(queue, offered=rng.random() < 0.5))
        names = ("attempts_max", "grace_ms", "jobs_max", "lease_ms")
        policy = QueuePolicy(attempts_max=3, grace_ms=100, jobs_max=20, lease_ms=2_000)
        command = c.SetQueue(
            queue=queue,
            paused=False if rng.random() < 0.5 else None,
            policy=policy if rng.random() < 0.5 else QueuePolicy(),
            fields=tuple(rng.sample(names, rng.randint(0, 2))),
            only_known=True,
        )
        self._expect("only known", command)

    def _strand(self) -> None:
        """A job that holds another one up for good, until somebody clears up; perhaps that one
        waits for a job of another queue besides.
        """
        simulation, rng = self.simulation, self.rng
        job_id = f"dead{rng.randint(1, 3)}"
        first = c.NewJob(job_id=job_id, queue=STRANDED, id_chosen=True, terms=OPEN_TERMS)
        self.ask(c.Submit((first,)))
        self.ask(c.Cancel(job_ids=(job_id,)))
        held = c.NewJob(
            job_id=simulation.server.ids.job_id(simulation.server.clock.now()),
            queue=STRANDED,
            terms=OPEN_TERMS,
            depends_on=(job_id, simulation.any_id(rng)) if rng.random() < 0.5 else (job_id,),
        )
        self.ask(c.Submit((held,)))

    def _operate(self) -> None:
        """What a search saw on disk a while ago is what the command is meant for."""
        simulation, rng = self.simulation, self.rng
        found = simulation.disk.job(simulation.any_id(rng))
        if found is None:
            return
        only = c.Only((found.state,), found.queue if rng.random() < 0.5 else None)
        job_id = found.job_id
        if found.state in (State.COMPLETED, State.CANCELLED):
            command: c.Command = c.Requeue(job_id=job_id, only=only)
        else:
            command = rng.choice(
                (
                    c.Cancel(job_ids=(job_id,), only=only),
                    c.Requeue(job_id=job_id, only=only),
                    c.Move(job_id=job_id, queue=simulation.any_queue(rng), only=only),
                    c.SetPriority(job_id, rng.choice((0.0, 2.0)), only),
                    c.ExpireLease(simulation.any_leased(rng) or job_id, only),
                )
            )
        kind = f"only: {type(command).__name__}"
        # Between the search and the command others have their turn.
        simulation.time.after(
            rng.choice((0, 50_000, 2_000_000)),
            lambda: self._expect(kind, command) if self._can_ask() else None,
        )

    def _can_ask(self) -> bool:
        connection = self.connection
        return (
            connection is not None
            and connection.is_usable()
            and not (self.simulation.faults_over or self.simulation.is_over)
        )

    def _ask_whether_drained(self) -> None:
        """Without tokens: it takes nothing."""
        simulation, rng = self.simulation, self.rng
        queues = [*simulation.queues, STRANDED, STRANDED, "unheard"]
        command = c.Claim(
            queues=tuple(rng.sample(queues, rng.randint(1, 2))),
            holder=Holder("native", "cautious"),
            tokens=(),
            early=rng.random() < 0.3,
            report_drained=rng.choice(list(c.ReportDrained)),
        )
        connection = self.connection
        assert connection is not None
        connection.send(lambda: simulation.ask(command, lambda _: None))


class CautiousWorker(NamedWorker):
    """Repeats its completions, as they were and otherwise."""

    def _complete(self, job: Job) -> None:
        self.jobs.pop(job.job_id, None)

        def completion(result: bytes) -> c.Complete:
            return c.Complete(
                job_id=job.job_id,
                proof=self.proof(job),
                result=result,
                queue=job.queue,
                repeated_exactly=True,
            )

        def again(reply: Reply) -> None:
            if isinstance(reply, Changed) and self.rng.random() < 0.5:
                self.ask(completion(b"1"), repeated)
                self.ask(completion(b"2"), repeated)

        def repeated(reply: Reply) -> None:
            self.simulation.count(outcome_of("repeated exactly", reply))

        self.ask(completion(b"1"), again)
