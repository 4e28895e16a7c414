"""Random traffic of both dialects at once: whatever happens, every job ends once, and every client
that stayed hears of it once for each time that it asked.
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.model.job import FINISHED, State
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft
from tests.unit.protocols.gearman_room import Room

ENDINGS = (wire.WORK_COMPLETE, wire.WORK_FAIL, wire.WORK_EXCEPTION)
SEATS = 3

seats = st.integers(0, SEATS - 1)
uniques = st.sampled_from([b"", b"", b"u", b"v", b"-"])
functions = st.sampled_from([b"f", b"g"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), seats, st.booleans(), functions, uniques),
        st.tuples(st.just("create"), seats, st.integers(0, 2), functions, uniques),
        st.tuples(st.just("grab"), seats),
        st.tuples(
            st.just("report"), seats, st.sampled_from(["status", "complete", "fail", "both"])
        ),
        st.tuples(st.just("assign"), seats),
        st.tuples(st.just("announce"), seats, st.sampled_from([None, 0, 7])),
        st.tuples(st.just("sleep"), seats),
        st.tuples(st.just("leave"), st.sampled_from(["client", "worker", "app", "hand"]), seats),
        st.tuples(st.just("goodbye"), seats),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(1, 400)),
        st.tuples(st.just("commit")),
    ),
    max_size=60,
)


class Traffic:
    """Clients and workers of the shipped protocol, applications and hands of the draft."""

    def __init__(self) -> None:
        self.room = Room()
        self.seats = {
            (kind, seat): self.sit(kind)
            for kind in ("client", "worker", "app", "hand")
            for seat in range(SEATS)
        }
        self.held: dict = {}  # worker -> handles
        self.handles: list[bytes] = []  # all that were told
        self.owed: dict = {}  # client -> how many endings each handle owes it
        self.waiting: dict = {}  # app -> how many sync jobs it asked for

    def sit(self, kind: str):
        if kind == "client":
            return self.room.gearman()
        if kind == "worker":
            worker = self.room.gearman()
            worker.give(wire.encode_request(wire.CAN_DO, b"f"))
            worker.give(wire.encode_request(wire.CAN_DO_TIMEOUT, b"g", b"1500"))
            return worker
        app = self.room.draft()
        if kind == "hand":
            app.give(draft.encode(draft.WorkerConnect((b"f", b"g"))))
        return app

    def step(self, what: str, *given) -> None:
        getattr(self, what)(*given)

    def submit(self, seat, foreground, function, unique) -> None:
        client = self.seats["client", seat]
        kind = wire.SUBMIT_JOB if foreground else wire.SUBMIT_JOB_BG
        self.collect()
        client.give(wire.encode_request(kind, function, unique, b"data"))
        self.room.run()
        handle = None
        for answer, args in client.heard():
            if answer == wire.JOB_CREATED:
                handle = args[0]
            else:
                self.take_ending(client, answer, args)
        assert handle is not None
        self.handles.append(handle)
        if foreground:
            self.owed.setdefault(client, Counter())[handle] += 1

    def create(self, seat, job_type, function, unique) -> None:
        app = self.seats["app", seat]
        app.give(draft.encode(draft.JobCreateReq(function, unique, job_type, b"data")))
        if job_type == draft.SYNC_WAIT:
            self.waiting[app] = self.waiting.get(app, 0) + 1

    def grab(self, seat) -> None:
        worker = self.seats["worker", seat]
        for answer, args in worker.tell(wire.GRAB_JOB_ALL):
            if answer in (wire.JOB_ASSIGN_UNIQ, wire.JOB_ASSIGN_ALL):
                self.held.setdefault(worker, []).append(args[0])

    def report(self, seat, how) -> None:
        worker = self.seats["worker", seat]
        handles = self.held.get(worker)
        if not handles:
            return
        if how == "status":
            worker.give(wire.encode_request(wire.WORK_STATUS, handles[0], b"1", b"2"))
            return
        handle = handles.pop(0)
        if how == "complete":
            worker.give(wire.encode_request(wire.WORK_COMPLETE, handle, b"r"))
        if how == "both":
            worker.give(wire.encode_request(wire.WORK_EXCEPTION, handle, b"x"))
        if how in ("both", "fail"):
            worker.give(wire.encode_request(wire.WORK_FAIL, handle))

    def assign(self, seat) -> None:
        self.seats["hand", seat].give(draft.encode(draft.JobAssignReq()))

    def announce(self, seat, code) -> None:
        packet = draft.JobStatusAnnounce(1, 2)
        if code is not None:
            packet = draft.JobCompleteAnnounce(code, b"r")
        self.seats["hand", seat].give(draft.encode(packet))

    def sleep(self, seat) -> None:
        self.seats["worker", seat].give(wire.encode_request(wire.PRE_SLEEP))
        self.seats["hand", seat].give(draft.encode(draft.WorkerSleep()))

    def leave(self, kind, seat) -> None:
        """Without a word; another one takes the seat."""
        self.forget(self.seats[kind, seat])
        self.seats[kind, seat].hang_up()
        self.seats[kind, seat] = self.sit(kind)

    def goodbye(self, seat) -> None:
        hand = self.seats["hand", seat]
        hand.tell(draft.WorkerDisconnect())
        assert hand.closed
        hand.hang_up()
        self.seats["hand", seat] = self.sit("hand")

    def cancel(self, number) -> None:
        if self.handles:
            handle = self.handles[number % len(self.handles)]
            self.seats["client", 0].give(b"cancel job " + handle + b"\n")

    def wait(self, milliseconds) -> None:
        self.room.run_for(milliseconds)

    def commit(self) -> None:
        self.room.run()

    def forget(self, line) -> None:
        self.owed.pop(line, None)
        self.waiting.pop(line, None)
        self.held.pop(line, None)

    def collect(self) -> None:
        """Endings that came."""
        self.room.run()
        for seat in range(SEATS):
            client = self.seats["client", seat]
            for answer, args in client.heard():
                self.take_ending(client, answer, args)
            app = self.seats["app", seat]
            ends = sum(type(answer) is draft.JobCompleteRes for answer in app.heard())
            if ends:
                self.waiting[app] -= ends

    def take_ending(self, client, answer, args) -> None:
        if answer in ENDINGS:
            self.owed[client][args[0]] -= 1
            assert self.owed[client][args[0]] >= 0, "an ending too many"
        else:
            assert answer in (wire.WORK_STATUS, wire.ADMIN_LINE), args

    def finish(self) -> None:
        """Somebody does all that is left."""
        for kind in ("worker", "hand"):
            for seat in range(SEATS):
                self.leave(kind, seat)
        self.collect()
        last = self.room.worker(b"f", b"g")
        while handle := last.grab():
            assert last.tell(wire.WORK_COMPLETE, handle[0], b"r") == []
            self.collect()


@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_every_job_ends_once_and_everybody_who_waits_hears_of_it_once(steps):
    """G7, G20, G36 and A34"""
    traffic = Traffic()

    for step in steps:
        traffic.step(*step)
    traffic.finish()

    assert traffic.room.dispatcher.counts.failures == 0
    assert not any(+owed for owed in traffic.owed.values())
    assert not any(traffic.waiting.values())
    for handle in traffic.handles:
        job = traffic.room.job(handle)
        assert job.state in FINISHED
        assert not job.waiters
        if job.durable_interest:
            assert job.reason != "abandoned"
    index = traffic.room.dispatcher.store.live
    assert all(row.counts[State.LEASED] == 0 for row in index.queues.values())
