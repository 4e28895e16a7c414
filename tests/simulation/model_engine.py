"""The engine against a second opinion: the same commands go to the engine and to a naive model of
plain dictionaries, and after every step both must tell the same.

The model was written from the rules, not from the engine: it recomputes by brute force what the
engine keeps in indexes, and walks graphs by recursion.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from manyhands.model import limits
from manyhands.model.commands import (
    ByToken,
    Cancel,
    Complete,
    Fail,
    LiftTerms,
    Move,
    Release,
    Renew,
    Requeue,
    SetDependencies,
    SetPriority,
)
from manyhands.model.job import EndReason, Failure
from manyhands.model.policy import OnDependencyFailure, OnDuplicate, OnExpiry, Terms
from manyhands.model.replies import Changed, Refusal, Submitted
from tests.unit.engine.world import SECOND, World, a_job, a_worker

QUEUES = ("a", "b")
TOLD_MAX, SEEN_MAX = limits.DEPENDANTS_NOTIFIED_MAX, limits.DEPENDANTS_SEEN_MAX
LIVE = ("blocked", "delayed", "ready", "leased")
TERM = 20 * SECOND
LAPSE_GRACE = 10 * SECOND


def a_naive_job(**fields: Any) -> dict[str, Any]:
    return {
        "state": "ready",
        "priority": 0.0,
        "waits": set(),
        "run_at": None,
        "deadline": None,
        "used": 0,
        "number": 0,
        "token": None,
        "term": None,
        "expires": None,
        "connection": None,
        "lapsed": False,
        "used_up": False,
        "key": None,
        "durable": True,
        "waiters": [],
        **fields,
    }


class Naive:
    """What should be true, kept in the simplest way."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[str, dict[str, Any]] = {}
        self.paused: set[str] = set()
        self.ended: list[str] = []

    # Helpers that the rules below share.

    def live(self, job_id: str) -> bool:
        return self.jobs[job_id]["state"] in LIVE

    def wanted(self, job: dict[str, Any]) -> bool:
        return job["durable"] or bool(job["waiters"])

    def key_holder(self, queue: str, key: bytes | None) -> str | None:
        for job_id, job in self.jobs.items():
            if key is not None and (job["queue"], job["key"]) == (queue, key) and self.live(job_id):
                return job_id
        return None

    def waiting_for(self, job_id: str) -> list[str]:
        return [
            other for other, job in self.jobs.items() if job_id in job["waits"] and self.live(other)
        ]

    def reaches(self, start: str, goal: str) -> bool:
        if start == goal:
            return True
        return self.live(start) and any(self.reaches(n, goal) for n in self.jobs[start]["waits"])

    def end(self, job_id: str, state: str) -> None:
        job = self.jobs[job_id]
        job.update(state=state, token=None, lapsed=False, run_at=None, waiters=[])
        if state == "completed":
            job["waits"] = set()
        self.ended.append(job_id)

    def put(self, job_id: str, run_at: int | None = None) -> None:
        """Where it belongs: blocked, delayed or ready."""
        job = self.jobs[job_id]
        job.update(token=None, lapsed=False, run_at=run_at)
        if job["waits"]:
            job["state"] = "blocked"
        elif run_at is not None and run_at > self.now:
            job["state"] = "delayed"
        else:
            job.update(state="ready", run_at=None)

    def lose_edge(self, job_id: str, gone: str) -> None:
        job = self.jobs[job_id]
        if job["on_lost"] == "run":
            self.drop_edge(job_id, gone)
        elif job["on_lost"] == "cancel" and job["state"] != "leased":
            self.end(job_id, "cancelled")
        elif job["on_lost"] == "fail" and job["state"] != "leased":
            self.end(job_id, "failed")

    def drop_edge(self, job_id: str, gone: str) -> None:
        job = self.jobs[job_id]
        job["waits"] = job["waits"] - {gone}
        if job["state"] == "blocked" and not job["waits"]:
            self.put(job_id, job["run_at"])

    def settle(self) -> None:
        """Everybody hears of everything, until nothing changes any more."""
        changing = True
        while changing:
            changing = False
            for job_id, job in self.jobs.items():
                for other in sorted(job["waits"]):
                    if not self.live(job_id) or other not in job["waits"]:
                        continue
                    before = (job["state"], job["waits"])
                    if self.jobs[other]["state"] == "completed":
                        self.drop_edge(job_id, other)
                    elif self.jobs[other]["state"] in ("failed", "cancelled"):
                        self.lose_edge(job_id, other)
                    changing = changing or before != (job["state"], job["waits"])
        self.ended.clear()

    # What happens.

    def come_back(self, job_id: str, charged: bool, run_at: int | None = None) -> None:
        job = self.jobs[job_id]
        if charged:
            job["used"] += 1
        if not self.wanted(job):
            self.end(job_id, "cancelled")
        elif charged and job["used"] >= job["budget"]:
            self.end(job_id, "failed")
        else:
            self.put(job_id, run_at)

    def claim(self, job_id: str, token: str, term: int | None, connection: str | None) -> None:
        job = self.jobs[job_id]
        if job["lapsed"]:
            job["used"] += 1
        job.update(
            state="leased",
            token=token,
            lapsed=False,
            term=term,
            expires=None if term is None else self.now + term,
            connection=connection,
            number=job["number"] + 1,
        )

    def spent(self, job: dict[str, Any]) -> bool:
        return job["lapsed"] and job["used_up"]

    def tick(self) -> None:
        for job_id, job in self.jobs.items():
            if not self.live(job_id):
                continue
            if job["deadline"] is not None and job["deadline"] <= self.now:
                self.end(job_id, "failed")
            elif job["state"] == "delayed" and job["run_at"] <= self.now:
                self.put(job_id)
            elif job["state"] == "leased" and (job["expires"] or self.now + 1) <= self.now:
                if job["lapses"] and not job["waits"] and self.wanted(job):
                    used_up = job["used"] + 1 >= job["budget"]
                    job.update(state="ready", lapsed=True, expires=self.now, used_up=used_up)
                else:
                    self.come_back(job_id, charged=True)
            elif self.spent(job) and job["expires"] + LAPSE_GRACE <= self.now:
                self.come_back(job_id, charged=True)

    def depend(self, job_id: str, others: list[str]) -> bool:
        """Whether it was possible."""
        job = self.jobs[job_id]
        fresh = set()
        for other in others:
            state = self.jobs[other]["state"]
            if state == "completed" or (
                state in ("failed", "cancelled") and job["on_lost"] == "run"
            ):
                continue
            fresh.add(other)
        fresh -= job["waits"]
        if any(self.reaches(other, job_id) for other in fresh):
            return False
        if fresh and job["state"] in ("ready", "delayed"):
            lapsed, run_at = job["lapsed"], job["run_at"]
            job["waits"] = fresh
            if lapsed:
                self.come_back(job_id, charged=True)
            else:
                self.put(job_id, run_at)
        else:
            job["waits"] = job["waits"] | fresh
        return True


class EngineMachine(RuleBasedStateMachine):
    """Random commands, in any order, at any time."""

    ids = Bundle("ids")
    picks = st.integers(0, 7)

    @initialize(
        target=ids, count=st.integers(1, 4), lapses=st.booleans(), budget=st.sampled_from([1, 3])
    )
    def begin(self, count, lapses, budget):
        limits.DEPENDANTS_NOTIFIED_MAX = limits.DEPENDANTS_SEEN_MAX = 2  # so that few are many
        self.world = World()
        self.naive = Naive()
        self.naive.now = self.world.now
        self.old_tokens: dict[str, list[str]] = {}
        terms = Terms(attempts_max=budget, on_expiry=OnExpiry.LAPSE if lapses else OnExpiry.REVOKE)
        ids = [self.world.submit(a_job("a", terms=terms)).job_id for _ in range(count)]
        for job_id in ids:
            self.naive.jobs[job_id] = a_naive_job(
                queue="a", budget=budget, lapses=lapses, on_lost="cancel"
            )
        return multiple(*ids)

    # Submitting.

    @rule(
        target=ids,
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0.0, 0.0, 1.0, -1.0]),
        delay=st.sampled_from([0, 0, 0, 5 * SECOND]),
        deadline=st.sampled_from([None, None, 60 * SECOND]),
        budget=st.sampled_from([1, 2, 3]),
        lapses=st.booleans(),
        on_lost=st.sampled_from(["hold", "cancel", "fail", "run"]),
        key=st.sampled_from([None, None, b"k"]),
        on_duplicate=st.sampled_from(list(OnDuplicate)),
        durable=st.sampled_from([True, True, False]),
        depends_on=st.lists(ids, max_size=2),
    )
    def submit(
        self,
        *,
        queue,
        priority,
        delay,
        deadline,
        budget,
        lapses,
        on_lost,
        key,
        on_duplicate,
        durable,
        depends_on,
    ):
        naive = self.naive
        waiter = None if durable else "s1/first"
        deadline_at = None if deadline is None else naive.now + deadline
        reply = self.world.offer(
            a_job(
                queue,
                priority=priority,
                delay_ms=delay,
                deadline_at=deadline_at,
                terms=Terms(
                    attempts_max=budget,
                    on_expiry=OnExpiry.LAPSE if lapses else OnExpiry.REVOKE,
                    on_dependency_failure=OnDependencyFailure(on_lost),
                ),
                unique_key=key,
                on_duplicate=on_duplicate,
                durable_interest=durable,
                waiter=waiter,
                depends_on=tuple(depends_on),
            )
        )
        holder = naive.key_holder(queue, key)
        if holder is not None and on_duplicate is OnDuplicate.ATTACH:
            assert isinstance(reply, Submitted)
            assert reply.job.job_id == holder
            job = naive.jobs[holder]
            job["durable"] = job["durable"] or durable
            job["waiters"] += [waiter] if waiter else []
            return multiple()
        if holder is not None and (
            on_duplicate is OnDuplicate.REFUSE or naive.jobs[holder]["state"] == "leased"
        ):
            assert isinstance(reply, Refusal)
            return multiple()
        assert isinstance(reply, Submitted)
        job_id = reply.job.job_id
        if holder is not None:
            # What depends on the job that gives way is decided on before it does.
            naive.end(holder, "cancelled")
        naive.jobs[job_id] = a_naive_job(
            queue=queue,
            priority=priority,
            deadline=deadline_at,
            budget=budget,
            lapses=lapses,
            on_lost=on_lost,
            key=key,
            durable=durable,
            waiters=[waiter] if waiter else [],
        )
        naive.put(job_id, naive.now + delay)
        naive.depend(job_id, depends_on)
        naive.settle()
        return job_id

    # Working.

    @rule(
        queues=st.permutations(QUEUES),
        count=st.integers(1, 3),
        term=st.sampled_from([TERM, TERM, None]),
        connection=st.sampled_from([None, "s1/1", "s1/2"]),
    )
    def claim(self, queues, count, term, connection):
        naive = self.naive
        expected = []
        for queue in queues:
            ready = [
                (-job["priority"], self.world.job(job_id).position, job_id)
                for job_id, job in naive.jobs.items()
                if job["queue"] == queue
                and job["state"] == "ready"
                and queue not in naive.paused
                and not naive.spent(job)
                and (job["deadline"] is None or job["deadline"] > naive.now)
            ]
            expected += [job_id for *_, job_id in sorted(ready)]
        jobs = self.world.claim_all(*queues, count=count, term_ms=term, connection=connection)
        assert [job.job_id for job in jobs] == expected[:count]
        for job in jobs:
            assert not naive.jobs[job.job_id]["waits"], "handed out before its dependencies"
            self.old_tokens.setdefault(job.job_id, []).append(job.lease.token)
            naive.claim(job.job_id, job.lease.token, term, connection)

    def held(self, job_id: str, pick: int) -> tuple[str, ByToken | None]:
        """Mostly a job that somebody holds, where there is one; sometimes any job."""
        held = [other for other, job in self.naive.jobs.items() if job["token"]]
        if held and pick < 7:
            job_id = held[pick % len(held)]
        token = self.naive.jobs[job_id]["token"]
        return job_id, None if token is None else ByToken(token)

    @rule(job_id=ids, pick=picks)
    def renew(self, job_id, pick):
        job_id, proof = self.held(job_id, pick)
        job = self.naive.jobs[job_id]
        reply = self.world.run(Renew(job_id=job_id, proof=proof or ByToken("none")))
        assert isinstance(reply, Changed if proof else Refusal)
        if proof:
            expires = None if job["term"] is None else self.naive.now + job["term"]
            job.update(state="leased", lapsed=False, expires=expires)

    @rule(job_id=ids, pick=picks)
    def complete(self, job_id, pick):
        job_id, proof = self.held(job_id, pick)
        reply = self.world.run(Complete(job_id=job_id, proof=proof or ByToken("none")))
        assert isinstance(reply, Changed if proof else Refusal)
        if proof:
            self.naive.end(job_id, "completed")
            self.naive.settle()

    @rule(job_id=ids, pick=picks, retry=st.booleans(), delay=st.sampled_from([0, 5 * SECOND]))
    def fail(self, job_id, pick, retry, delay):
        job_id, proof = self.held(job_id, pick)
        reply = self.world.run(
            Fail(
                job_id=job_id,
                proof=proof or ByToken("none"),
                failure=Failure("x"),
                retry=retry,
                delay_ms=delay,
            )
        )
        assert isinstance(reply, Changed if proof else Refusal)
        if proof and retry:
            self.naive.come_back(job_id, charged=True, run_at=self.naive.now + delay)
        elif proof:
            self.naive.end(job_id, "failed")
        self.naive.settle()

    @rule(job_id=ids, pick=picks)
    def release(self, job_id, pick):
        job_id, proof = self.held(job_id, pick)
        reply = self.world.run(Release(job_id=job_id, proof=proof or ByToken("none")))
        assert isinstance(reply, Changed if proof else Refusal)
        if proof:
            self.naive.come_back(job_id, charged=False)
            self.naive.settle()

    @rule(job_id=ids, data=st.data())
    def a_late_worker_speaks_up(self, job_id, data):
        """Whoever lost its lease can no longer change the job."""
        tokens = self.old_tokens.get(job_id, [])
        stale = [token for token in tokens if token != self.naive.jobs[job_id]["token"]]
        if not stale:
            return
        proof = ByToken(data.draw(st.sampled_from(stale)))
        reply = self.world.run(Complete(job_id=job_id, proof=proof, result=b"late"))
        assert isinstance(reply, Refusal) or (isinstance(reply, Changed) and reply.repeated)

    @rule(connection=st.sampled_from(["s1/1", "s1/2"]))
    def lift_terms(self, connection):
        timed = [
            job
            for job in self.naive.jobs.values()
            if job["state"] == "leased" and job["connection"] == connection and job["term"]
        ]
        assert self.world.accepted(LiftTerms(connection)) == len(timed)
        for job in timed:
            job.update(term=None, expires=None)

    @rule(connection=st.sampled_from(["s1/1", "s1/2"]), lost=st.booleans())
    def depart(self, connection, lost):
        held = [
            job_id
            for job_id, job in self.naive.jobs.items()
            if job["state"] == "leased" and job["connection"] == connection
        ]
        reason = EndReason.LOST if lost else EndReason.GOODBYE
        assert self.world.depart(connection=connection, reason=reason) == len(held)
        for job_id in held:
            self.naive.come_back(job_id, charged=lost)
        self.naive.settle()

    # Operating.

    @rule(job_id=ids, with_dependants=st.booleans())
    def cancel(self, job_id, with_dependants):
        naive = self.naive
        reply = self.world.run(Cancel(job_ids=(job_id,), with_dependants=with_dependants))
        refused = naive.jobs[job_id]["state"] in ("completed", "cancelled") or (
            not with_dependants and bool(naive.waiting_for(job_id))
        )
        assert isinstance(reply, Refusal) == refused
        if refused:
            return
        doomed = [job_id]
        for one in doomed:
            doomed += [other for other in naive.waiting_for(one) if other not in doomed]
        for one in doomed:
            naive.end(one, "cancelled")
            assert self.world.job(one).reason == "cancelled", one
        told = {job.job_id for job in reply.jobs}
        assert told == (
            set(doomed) if len(doomed) <= 1 + limits.DEPENDANTS_NOTIFIED_MAX else {job_id}
        )
        naive.settle()

    @rule(job_id=ids)
    def requeue(self, job_id):
        naive, job = self.naive, self.naive.jobs[job_id]
        reply = self.world.run(Requeue(job_id=job_id))
        refused = naive.live(job_id) or naive.key_holder(job["queue"], job["key"]) is not None
        assert isinstance(reply, Refusal) == refused
        if refused:
            return
        if job["deadline"] is not None and job["deadline"] <= naive.now:
            job["deadline"] = None
        job.update(used=0, waits=set(), durable=True)
        naive.put(job_id)
        naive.settle()

    @rule(job_id=ids, queue=st.sampled_from(QUEUES))
    def move(self, job_id, queue):
        naive, job = self.naive, self.naive.jobs[job_id]
        reply = self.world.run(Move(job_id=job_id, queue=queue))
        refused = not naive.live(job_id) or naive.key_holder(queue, job["key"]) not in (
            None,
            job_id,
        )
        assert isinstance(reply, Refusal) == refused
        if refused:
            return
        if not naive.wanted(job):
            naive.end(job_id, "cancelled")
        else:
            job.update(queue=queue, used=0)
            naive.put(job_id)
        naive.settle()

    @rule(job_id=ids, priority=st.sampled_from([-1.0, 0.0, 1.0]))
    def set_priority(self, job_id, priority):
        reply = self.world.run(SetPriority(job_id, priority))
        assert isinstance(reply, Changed if self.naive.live(job_id) else Refusal)
        if self.naive.live(job_id):
            self.naive.jobs[job_id]["priority"] = priority

    @rule(job_id=ids, others=st.lists(ids, min_size=1, max_size=2))
    def add_dependencies(self, job_id, others):
        reply = self.world.run(SetDependencies(job_id=job_id, add=tuple(others)))
        possible = self.naive.live(job_id) and self.naive.depend(job_id, others)
        assert isinstance(reply, Changed if possible else Refusal)
        self.naive.settle()

    @rule(job_id=ids, others=st.lists(ids, min_size=1, max_size=2))
    def remove_dependencies(self, job_id, others):
        naive = self.naive
        reply = self.world.run(SetDependencies(job_id=job_id, remove=tuple(others)))
        assert isinstance(reply, Changed if naive.live(job_id) else Refusal)
        if naive.live(job_id):
            for other in others:
                naive.drop_edge(job_id, other)

    @rule(job_id=ids, waiter=st.sampled_from([None, "s1/first", "s1/second"]))
    def attach(self, job_id, waiter):
        self.world.attach(job_id, waiter, durable=waiter is None)
        job = self.naive.jobs[job_id]
        if self.naive.live(job_id):
            job["durable"] = job["durable"] or waiter is None
            job["waiters"] += [waiter] if waiter else []

    @rule(waiter=st.sampled_from(["s1/first", "s1/second"]))
    def detach(self, waiter):
        naive = self.naive
        self.world.detach(waiter)
        for job_id, job in naive.jobs.items():
            if waiter in job["waiters"]:
                job["waiters"] = [one for one in job["waiters"] if one != waiter]
                if not naive.wanted(job) and naive.live(job_id) and job["state"] != "leased":
                    naive.end(job_id, "cancelled")
        naive.settle()

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause(self, queue, paused):
        self.world.set_queue(queue, paused=paused)
        self.naive.paused -= {queue}
        if paused:
            self.naive.paused |= {queue}

    @rule(ms=st.sampled_from([0, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, 30 * SECOND]))
    def tick(self, ms):
        self.world.tick(ms)
        self.naive.now += ms
        self.naive.tick()
        self.naive.settle()

    # What must be true at every moment.

    @invariant()
    def both_tell_the_same(self):
        for job_id, job in self.naive.jobs.items():
            real = self.world.job(job_id)
            told = (str(real.state), real.queue, real.priority, set(real.waits_for))
            assert told[:3] == (job["state"], job["queue"], job["priority"]), job_id
            if self.naive.live(job_id):
                assert told[3] == job["waits"], job_id
                assert list(real.waiters) == job["waiters"], job_id
                assert real.durable_interest == job["durable"], job_id
            assert (real.attempts_used, real.lease_number) == (job["used"], job["number"]), job_id
            token = real.lease.token if real.lease is not None else None
            assert token == job["token"], job_id

    @invariant()
    def a_job_has_one_lease_and_a_lease_one_job(self):
        tokens = [job["token"] for job in self.naive.jobs.values() if job["token"]]
        assert len(tokens) == len(set(tokens))

    @invariant()
    def a_finished_job_stays_as_it_is_unless_it_is_put_to_work_again(self):
        ended: dict[str, int] = {}
        for event in self.world.events():
            if event.job_id in ended and str(event.state) != "cancelled":
                assert event.incarnation > ended[event.job_id], event
            if str(event.state) not in LIVE:
                ended[event.job_id] = event.incarnation

    def teardown(self):
        """When time goes on and workers complete, everything ends that can."""
        limits.DEPENDANTS_NOTIFIED_MAX, limits.DEPENDANTS_SEEN_MAX = TOLD_MAX, SEEN_MAX
        if not hasattr(self, "world"):
            return
        for queue in QUEUES:
            self.world.set_queue(queue, paused=False)
        for _ in range(200):
            self.world.tick(30 * SECOND)
            jobs = self.world.claim_all(*QUEUES, count=50, holder=a_worker("last"))
            for job in jobs:
                self.world.complete(job.job_id)
            held = [job_id for job_id in self.naive.jobs if self.world.job(job_id).lease]
            for job_id in held:
                self.world.complete(job_id)
            if not jobs and not held:
                break
        for job_id in self.naive.jobs:
            job = self.world.job(job_id)
            if str(job.state) in LIVE:
                assert str(job.state) == "blocked", job
                stuck = [self.world.job(key) for key in job.waits_for]
                assert all(str(other.state) != "completed" for other in stuck)
        self.world.check()
