"""What a WMP worker does, message by message, on a clock that is moved by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.client.wmp_held import End, Held
from manyhands.client.wmp_rules import Rules
from manyhands.protocols.wmp.codec import Command, Control, Packet, decode, encode, pack, unpack

WAKE, TAKE, NO, CANCEL = Command.WAKE, Command.TAKE, Command.NO, Command.CANCEL


class Said:
    """A message that the worker sent."""

    def __init__(self, link: int, frames: list[bytes]) -> None:
        packet = unpack(frames)
        self.link, self.route, self.payload = link, packet.route, packet.payload
        self.control: Control = decode(packet.control)
        self.command = self.control.command.name

    def __getitem__(self, name: str) -> str | None:
        value = self.control.get(name.encode())
        return None if value is None else value.decode()


class Bench:
    """A worker, and its managers."""

    def __init__(self, links: int = 1, **options: Any) -> None:
        self.now = 1_000_000
        self.said: list[Said] = []
        self.begun: list[Held] = []
        self.cancelled: list[Held] = []
        self.ended: list[tuple[bytes, bytes]] = []
        self.away: set[int] = set()
        self.rules = Rules(self, links, chance=lambda: 0.5, **options)
        self.due = self.rules.turn(self.now)

    def send(self, link: int, frames: list[bytes]) -> bool:
        if link in self.away:
            return False
        self.said.append(Said(link, frames))
        return True

    def begin(self, job: Held) -> None:
        self.begun.append(job)

    def cancel(self, job: Held) -> None:
        self.cancelled.append(job)

    def recorded(self, job: Held, reason: bytes) -> None:
        self.ended.append((job.job_id, reason))

    def hear(
        self, command: Command, payload: bytes | None = None, link: int = 0, trail=(), **values
    ) -> None:
        pairs = [
            (name.encode(), value if isinstance(value, bytes) else str(value).encode())
            for name, value in {"manager": "M1", **values}.items()
        ]
        frames = pack(Packet((), trail, encode(command, *pairs), payload))
        self.rules.receive(link, frames, self.now)
        self.due = self.rules.turn(self.now)

    def take(self, number: int = 1, link: int = 0, **values) -> Held:
        values = {"job": f"j{number}", "lease": f"lease-{number}", "timeout": 60_000, **values}
        self.hear(TAKE, b"data", link, **values)
        return self.begun[-1]

    def finish(self, job: Held, end: End = End.OK, data: bytes | None = b"out") -> None:
        self.rules.finish(job, end, data, self.now)
        self.due = self.rules.turn(self.now)

    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            self.now = min(end, self.now + max(1, self.due))
            self.due = self.rules.turn(self.now)

    def words(self) -> list[str]:
        """The commands said since this was last asked."""
        said, self.said = self.said, []
        return [f"{each.command}{each.link or ''}" for each in said]

    def last(self, command: str) -> Said:
        found = [each for each in self.said if each.command == command][-1]
        self.said = []
        return found


def test_w11_ready_is_said_to_all_managers_at_the_start():
    bench = Bench(links=3, roles=("mail", "print"), slots=4, identity="me")

    ready = bench.said[0]
    assert [each.link for each in bench.said] == [0, 1, 2]
    assert ready.control.texts(b"role") == ("mail", "print")
    assert (ready["slots"], ready["identity"]) == ("4", "me")


def test_w12_a_wake_is_answered_with_give_along_its_trail():
    bench = Bench(roles=("mail",))
    bench.words()

    bench.hear(WAKE, trail=(b"d2", b"m1"), count=1)

    (give,) = bench.said
    assert (give.command, give.route) == ("GIVE", (b"d2", b"m1"))
    assert (give["timeout"], give["role"], give["n"]) == ("5000", "mail", None)
    assert bench.rules.free == 0


def test_w13_as_many_slots_are_locked_as_there_are_jobs_and_room():
    bench = Bench(slots=4)
    bench.hear(WAKE, count=3)
    assert bench.last("GIVE")["n"] == "3"
    bench.hear(WAKE, link=0, trail=(b"other",), count=9)
    assert bench.last("GIVE")["n"] is None
    assert bench.rules.free == 0


def test_w14_take_makes_a_job_of_a_lock_and_no_unlocks():
    bench = Bench(slots=3)
    bench.hear(WAKE, count=3)
    lock = bench.last("GIVE")["lock"]

    job = bench.take(lock=lock)
    assert (job.job_id, job.data, job.manager) == (b"j1", b"data", b"M1")
    assert bench.rules.free == 0
    bench.hear(NO, lock=lock, n=2)

    assert bench.rules.free == 2


def test_w11_ready_is_said_again_right_after_take_while_slots_are_left():
    bench = Bench(slots=2)
    bench.hear(WAKE, count=1)
    lock = bench.last("GIVE")["lock"]

    bench.take(lock=lock)

    assert bench.last("READY")["slots"] == "1"


def test_w11_a_ready_that_stands_is_not_repeated():
    bench = Bench(links=2, slots=1)
    bench.hear(WAKE, link=0)
    lock = bench.last("GIVE")["lock"]
    job = bench.take(lock=lock)
    assert bench.words() == []  # there is no free slot

    bench.finish(job)

    assert bench.words() == ["DONE", "READY"]  # the one at the second manager still stands


def test_w15_a_lock_ends_after_its_time_and_a_late_take_is_taken_if_there_is_room():
    bench = Bench()
    bench.hear(WAKE)
    lock = bench.last("GIVE")["lock"]
    assert bench.rules.free == 0
    bench.pass_time(5_100)
    assert bench.rules.free == 1

    job = bench.take(lock=lock)

    assert bench.rules.jobs == {job.lease: job}


def test_w15_a_late_take_is_refused_if_all_slots_are_busy():
    bench = Bench()
    bench.hear(WAKE)
    first = bench.last("GIVE")["lock"]
    bench.pass_time(5_100)
    bench.hear(WAKE)
    bench.take(1, lock=bench.last("GIVE")["lock"])
    bench.words()

    bench.hear(TAKE, b"late", job="j2", lease="lease-2", timeout=60_000, lock=first)

    done = bench.last("DONE")
    assert (done["status"], done["job"], done["lease"]) == ("refused", "j2", "lease-2")
    assert len(bench.begun) == 1


def test_w16_the_same_take_twice_is_one_job():
    bench = Bench(slots=4)
    job = bench.take(1)
    bench.hear(TAKE, b"data", job="j1", lease="lease-1", timeout=60_000)
    assert len(bench.begun) == 1
    bench.finish(job)

    bench.hear(TAKE, b"data", job="j1", lease="lease-1", timeout=60_000)

    assert len(bench.begun) == 1


def test_w16_a_job_of_another_role_is_given_back():
    bench = Bench(roles=("mail",))

    bench.hear(TAKE, b"", job="j1", lease="l", timeout=1, role="print")

    assert bench.last("DONE")["status"] == "refused"
    assert bench.begun == []


def test_w17_ready_is_repeated_less_and_less_often_until_somebody_speaks():
    bench = Bench()
    bench.words()
    said_at = []
    for _ in range(1_000):
        bench.pass_time(100)
        if bench.words():
            said_at.append(bench.now - 1_000_000)
    assert said_at == [5_000, 15_000, 35_000, 65_000, 95_000]

    bench.hear(NO)
    bench.words()
    bench.pass_time(31_000)

    assert bench.words().count("READY") >= 2


def test_w17_the_times_differ_between_workers():
    bench = Bench()
    bench.rules._chance = lambda: 0.0
    early = bench.rules._shaken(10_000)
    bench.rules._chance = lambda: 1.0

    assert (early, bench.rules._shaken(10_000)) == (8_000, 12_000)


def test_w18_a_sign_of_life_every_third_of_the_lease():
    bench = Bench()
    job = bench.take(timeout=3_000)
    bench.words()
    bench.pass_time(2_950)
    assert bench.words() == ["STATUS", "STATUS"]
    bench.finish(job)
    bench.words()

    bench.pass_time(900)

    assert "STATUS" not in bench.words()


def test_w18_a_lease_without_an_end_needs_no_sign_of_life():
    bench = Bench()
    bench.take(timeout=0)
    bench.words()

    bench.pass_time(20_000)

    assert bench.words() == []


def test_w18_progress_is_told_with_what_belongs_to_it():
    bench = Bench()
    job = bench.take()
    bench.words()

    bench.rules.progress(job, 1, 3, b"piece", bench.now)

    status = bench.last("STATUS")
    assert (status["progress"], status.payload, status["lease"]) == ("1/3", b"piece", "lease-1")


def test_w19_a_result_is_said_again_until_it_is_recorded():
    bench = Bench(slots=2)
    job = bench.take()
    bench.finish(job)
    done = bench.last("DONE")
    assert (done["status"], done["ack"], done["manager"], done.payload) == ("ok", "1", "M1", b"out")
    bench.pass_time(3_500)
    assert bench.words().count("DONE") == 2  # after 1 s and 3 s

    bench.hear(CANCEL, job="j1", lease="lease-1", reason="recorded")
    bench.pass_time(60_000)

    assert "DONE" not in bench.words()
    assert bench.ended == [(b"j1", b"recorded")]


@pytest.mark.parametrize("reason", ["lost", "unknown", "cancelled"])
def test_w19_a_result_that_nobody_wants_is_given_up(reason):
    bench = Bench()
    bench.finish(bench.take())

    bench.hear(CANCEL, job="j1", lease="lease-1", reason=reason)

    assert bench.rules.kept == {}
    assert bench.ended == [(b"j1", reason.encode())]


def test_w19_there_is_an_end_to_the_results_that_are_kept(monkeypatch):
    monkeypatch.setattr("manyhands.client.wmp_rules._KEPT_COUNT_MAX", 2)
    bench = Bench()
    for number in range(3):
        bench.finish(bench.take(number))

    assert list(bench.rules.kept) == [b"lease-1", b"lease-2"]
    assert bench.ended == [(b"j0", b"unconfirmed")]


def test_w39_a_running_job_that_is_cancelled_is_stopped_and_says_nothing_more():
    bench = Bench()
    job = bench.take()
    bench.hear(CANCEL, job="j1", lease="lease-1", reason="cancelled")
    assert bench.cancelled == [job]
    assert bench.rules.free == 0  # until it has really stopped
    bench.words()

    bench.finish(job)

    assert bench.words() == ["READY"]
    assert bench.rules.kept == {}


def test_w20_accounts_follow_the_manager_named_in_take_and_hops_follow_its_trail():
    bench = Bench(slots=2)
    bench.hear(WAKE, trail=(b"mid",), manager="M2")
    lock = bench.last("GIVE")["lock"]

    bench.hear(
        TAKE, b"", trail=(b"mid",), manager="M1", job="j1", lease="l", lock=lock, timeout=9_000
    )
    bench.finish(bench.begun[0])

    done = bench.last("DONE")
    assert (done["manager"], done.route) == ("M1", (b"mid",))


def test_w58_those_who_were_put_off_come_first_in_their_order():
    bench = Bench(links=3)
    bench.hear(WAKE, link=0)
    job = bench.take(1, lock=bench.last("GIVE")["lock"])
    bench.hear(WAKE, link=1)
    bench.hear(WAKE, link=2)
    bench.hear(WAKE, link=1)
    assert bench.words() == []

    bench.finish(job)
    assert bench.words() == ["DONE", "READY", "GIVE1"]
    bench.hear(NO, link=1, lock="2")
    assert bench.words() == ["READY1", "GIVE2"]


def test_w58_a_manager_that_has_more_is_asked_again_after_all_others():
    bench = Bench(links=2)
    bench.hear(WAKE, link=0)
    bench.hear(WAKE, link=1)
    job = bench.take(1, lock=bench.last("GIVE")["lock"], more=5)
    bench.words()

    bench.finish(job)
    assert bench.words() == ["DONE", "GIVE1"]
    job = bench.take(2, link=1, lock="2", more=1)
    bench.finish(job)
    assert bench.words() == ["DONE1", "GIVE"]
    job = bench.take(3, lock="3")
    bench.finish(job)

    assert bench.words() == ["DONE", "READY", "GIVE1"]


def test_w58_a_manager_that_had_no_more_gets_its_turn_again_while_another_has_always_more():
    bench = Bench(links=2)
    bench.hear(WAKE, link=0)
    job = bench.take(lock=bench.last("GIVE")["lock"])  # and that was all it had
    bench.hear(WAKE, link=1, count=9)
    bench.words()

    bench.finish(job)
    assert bench.words() == ["DONE", "READY", "GIVE1"]
    job = bench.take(2, link=1, lock="2", more=8)
    bench.hear(WAKE, link=0)  # now it has more
    bench.finish(job)
    assert bench.words() == ["DONE1", "GIVE1"]
    job = bench.take(3, link=1, lock="3", more=7)
    bench.finish(job)
    assert bench.words() == ["DONE1", "GIVE"]


def test_w58_a_manager_that_is_away_locks_nothing():
    bench = Bench(links=2)
    bench.away.add(1)
    bench.hear(WAKE, link=1)
    assert bench.rules.free == 1

    bench.away.clear()
    bench.words()
    bench.rules.connected(1, bench.now)
    bench.rules.turn(bench.now)

    assert bench.words() == ["READY1"]


def test_w40_results_are_said_again_as_soon_as_the_manager_is_back():
    bench = Bench()
    bench.finish(bench.take())
    bench.words()

    bench.rules.connected(0, bench.now)
    bench.rules.turn(bench.now)

    assert bench.words() == ["DONE", "READY"]


def test_w15_a_job_that_was_on_its_way_when_the_worker_stopped_is_given_back():
    bench = Bench(slots=2)
    bench.hear(WAKE)
    bench.rules.stopping = True
    assert not bench.rules.is_through()

    lock = bench.said[-1]["lock"]
    bench.hear(TAKE, b"data", job="j1", lease="lease-1", timeout=60_000, lock=lock)

    assert not bench.begun
    assert (bench.said[-1].command, bench.said[-1]["status"]) == ("DONE", "refused")
    assert bench.rules.is_through()


def test_w15_a_worker_that_stops_does_not_wait_for_an_answer_beyond_its_time():
    bench = Bench()
    bench.hear(WAKE)
    bench.rules.stopping = True
    bench.pass_time(5_000)
    assert bench.rules.is_through()


def test_a_worker_that_stops_takes_nothing_more():
    bench = Bench(slots=2)
    job = bench.take()
    bench.rules.stopping = True
    bench.words()
    bench.hear(WAKE)
    bench.finish(job)

    assert bench.words() == ["DONE"]


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_w9_whatever_a_manager_sends_harms_no_worker(frames):
    bench = Bench()
    bench.rules.receive(0, frames, bench.now)

    assert bench.rules.free == 1


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (TAKE, {"job": "j", "lease": ""}),
        (TAKE, {"lease": "l"}),
        (TAKE, {"job": "j", "lease": "l", "timeout": "soon"}),
        (WAKE, {"count": "x"}),
        (WAKE, {"manager": ""}),
        (CANCEL, {"job": "j"}),
        (Command.READY, {}),
        (Command.REPLY, {}),
    ],
)
def test_w9_a_worker_drops_and_counts_what_makes_no_sense(command, values):
    bench = Bench()
    bench.words()
    bench.hear(command, **values)

    assert bench.rules.dropped_count == 1
    assert bench.words() == []
