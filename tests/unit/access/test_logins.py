"""Logins: passwords are checked outside of the event loop, in turn, and a failure takes a while."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from manyhands.access.callers import Callers, Entry, PasswordCheck, new_password
from manyhands.access.credentials import Credentials
from manyhands.access.logins import DELAY_SECONDS, Failure, Logins
from manyhands.access.password_line import PasswordLine
from manyhands.model.roles import Caller, Role

ADA = Entry(caller=Caller("ada", Role.OPERATE), password=new_password("correct horse"))
RIGHT = Credentials(address="10.0.0.1", user="ada", password="correct horse")
WRONG = Credentials(address="10.0.0.1", user="ada", password="wrong")


class Gated:
    """A check that does not end before it may."""

    def __init__(self, begun: list, name: str) -> None:
        self.name = name
        self.may_end = threading.Event()
        self.begun = begun

    def run(self):
        self.begun.append(self.name)
        assert self.may_end.wait(60)


class Records:
    def __init__(self) -> None:
        self.entries: list[tuple] = []

    def refused(self, caller, address, protocol, what, target) -> None:  # noqa: ARG002
        self.entries.append((address, protocol, what))


def logins_of(*entries: Entry) -> Logins:
    callers = Callers(entries, asks_everyone=True)
    return Logins(callers, Records(), asyncio.get_running_loop())


def counts(logins: Logins) -> dict[str, float]:
    return {
        sample.name: sample.value
        for metric in logins.metrics()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


async def turns(until) -> None:
    """Lets the loop go on until something is so; fails by the test's own time limit."""
    while not until():  # noqa: ASYNC110 - every turn counts
        await asyncio.sleep(0)


def test_the_loop_goes_on_while_passwords_are_checked(monkeypatch):
    async def both() -> None:
        gate = threading.Event()
        begun = []

        def run(_self):
            begun.append(1)
            assert gate.wait(60)

        monkeypatch.setattr(PasswordCheck, "run", run)
        logins = logins_of(ADA)
        outcomes = []
        for _ in range(5):
            logins.identify(WRONG, "http", outcomes.append)
        for _ in range(1_000):  # turns of the loop, while no check has ended
            await asyncio.sleep(0)
        assert not outcomes
        gate.set()
        await turns(lambda: outcomes)
        assert outcomes[0] is Failure.WRONG

    asyncio.run(both())


def test_a_password_is_checked_once_until_the_callers_change(monkeypatch):
    async def both() -> None:
        run, ran = PasswordCheck.run, []
        monkeypatch.setattr(PasswordCheck, "run", lambda self: ran.append(1) or run(self))
        logins = logins_of(ADA)

        for _ in range(3):
            found = await logins.identified(RIGHT, "http")
            assert isinstance(found, Caller)
        assert len(ran) == 1

        logins.callers.replace([ADA])
        assert isinstance(await logins.identified(RIGHT, "http"), Caller)
        assert len(ran) == 2

    asyncio.run(both())


def test_a_caller_that_is_removed_during_the_check_is_not_let_in(monkeypatch):
    async def both() -> None:
        run = PasswordCheck.run
        logins = logins_of(ADA)
        loop = asyncio.get_running_loop()

        def run_then_remove(self):
            found = run(self)
            removed = threading.Event()
            loop.call_soon_threadsafe(lambda: (logins.callers.replace([]), removed.set()))
            assert removed.wait(60)
            return found

        monkeypatch.setattr(PasswordCheck, "run", run_then_remove)
        assert await logins.identified(RIGHT, "http") is Failure.WRONG

    asyncio.run(both())


def test_a_failure_is_counted_recorded_and_reported_only_after_a_while():
    async def both() -> None:
        logins = logins_of(ADA)
        loop = asyncio.get_running_loop()
        began = loop.time()

        token = Credentials(address="10.0.0.9", token="guess")
        assert await logins.identified(token, "gearman") is Failure.WRONG

        assert loop.time() - began >= DELAY_SECONDS - 0.01
        assert counts(logins)["manyhands_failed_logins_total"] == 1
        assert logins._audit.entries == [("10.0.0.9", "gearman", "log in with a token")]

    asyncio.run(both())


def test_addresses_take_turns_and_one_with_a_wrong_password_rests(monkeypatch):
    async def both() -> None:
        loop = asyncio.get_running_loop()
        line = PasswordLine(loop)
        monkeypatch.setattr(line, "_threads_max", 1)
        begun: list[str] = []
        checks = [Gated(begun, name) for name in ("a1", "a2", "b1", "a3")]
        for check in checks:
            assert line.put(check.name[0], check, lambda _found: None)

        checks[0].may_end.set()
        await turns(lambda: len(begun) == 2)
        assert begun == ["a1", "b1"]  # a rests
        checks[2].may_end.set()
        checks[1].may_end.set()
        checks[3].may_end.set()
        await turns(lambda: len(begun) == 4)

        assert begun == ["a1", "b1", "a2", "a3"]
        assert line.waiting_count == 0

    asyncio.run(both())


def test_the_line_is_bounded_for_one_address_and_others_have_room():
    async def both() -> None:
        line = PasswordLine(asyncio.get_running_loop())
        begun: list[str] = []
        checks = [Gated(begun, "flood") for _ in range(100)]
        other = Gated(begun, "other")
        settled: list = []

        taken = [line.put("10.0.0.1", check, settled.append) for check in checks]
        assert 20 <= sum(taken) <= 25
        assert not taken[-1]
        assert line.put("10.0.0.2", other, settled.append)

        for check in (*checks, other):
            check.may_end.set()
        await turns(lambda: "other" in begun)

    asyncio.run(both())


def test_a_login_that_finds_no_room_is_postponed_and_not_called_wrong():
    async def both() -> None:
        logins = logins_of(ADA)
        logins._line = SimpleNamespace(put=lambda *_: False, waiting_count=0)

        assert await logins.identified(RIGHT, "amqp") is Failure.BUSY
        assert counts(logins)["manyhands_postponed_logins_total"] == 1
        assert not logins._audit.entries

    asyncio.run(both())


@pytest.mark.parametrize("user", ["ada", "nobody"])
def test_a_wrong_password_costs_as_many_hashes_whoever_it_is_for(monkeypatch, user):
    second = Entry(caller=ADA.caller, password=new_password("another"))
    callers = Callers([ADA, second], asks_everyone=True)
    hashed = []
    monkeypatch.setattr(
        "manyhands.access.callers.Password.fits", lambda self, _given: bool(hashed.append(self))
    )

    assert callers.identify(Credentials(user=user, password="wrong")) is None

    assert len(hashed) == 2
