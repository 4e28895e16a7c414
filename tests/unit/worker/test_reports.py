"""Outcomes on their way to the server."""

import asyncio
import logging

import pytest

from manyhands import App
from manyhands.client import notes
from manyhands.client.errors import Refused
from manyhands.client.notes import Limits
from manyhands.client.worker import reports
from manyhands.client.worker.execution import Outcome
from manyhands.client.worker.reports import Reports
from manyhands.client.worker.run import Run
from manyhands.client.worker.tallies import COMPLETED, FAILED, GIVEN_BACK, LOST

app = App("http://127.0.0.1:1")


@app.task
def noop() -> None: ...


class FakeStream:
    """Keeps reports, and answers when it is told to."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.sent: list[dict] = []
        self.answers: list[asyncio.Future] = []

    def report(self, **lists) -> "asyncio.Future[list]":
        self.sent.append(lists)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Sender:
    def __init__(self) -> None:
        self.stream = FakeStream()
        self.settled: list[str] = []
        self.refused: list[str] = []
        self.reports = Reports(
            asyncio.get_running_loop(),
            self.stream,  # type: ignore[arg-type]
            lambda ended: self.settled.extend(run.given.id for run, _ in ended),
            lambda: None,
            lambda run: self.refused.append(run.given.id),
        )

    def add(self, number: int, kind: str = COMPLETED, *, is_last: bool = False) -> None:
        given = notes.Job(str(number), "noop", "token", 1, 0, b"{}", "json")
        run = Run(given, noop, None, 0.0)  # type: ignore[arg-type]
        self.reports.add(run, Outcome(kind, (str(number), "token", number)), is_last=is_last)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_p46_outcomes_leave_together_and_by_their_kinds():
    async def main() -> None:
        sender = Sender()
        kinds = (COMPLETED, FAILED, GIVEN_BACK, LOST, COMPLETED)
        for number, kind in enumerate(kinds):
            sender.add(number, kind, is_last=number == 4)
        await turns()
        assert sender.stream.sent == [
            {
                "done": [("0", "token", 0), ("4", "token", 4)],
                "failed": [("1", "token", 1)],
                "released": [("2", "token", 2)],
            }
        ]
        assert sender.settled == ["0", "1", "2", "3", "4"]

    asyncio.run(main())


def test_p46_a_busy_worker_gathers_64_outcomes_or_those_of_a_millisecond(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(reports, "perf_counter", lambda: now[0])

    async def main() -> None:
        sender = Sender()
        counts: list[int] = []

        async def add(count: int) -> None:
            for number in range(count):
                sender.add(number)
            await turns()
            for answer in sender.stream.answers:
                if not answer.done():
                    answer.set_result([])
            await turns()
            counts[:] = [len(each["done"]) for each in sender.stream.sent]

        await add(1)  # the first does not wait
        assert counts == [1]
        await add(63)
        assert counts == [1]
        await add(1)
        assert counts == [1, 64]
        await add(5)
        now[0] += 0.002
        await add(1)
        assert counts == [1, 64, 6]

    asyncio.run(main())


def test_p46_at_most_four_notes_are_unanswered():
    async def main() -> None:
        sender = Sender()
        for number in range(6):
            sender.add(number, is_last=True)
            await turns()
        assert len(sender.stream.sent) == 4
        sender.stream.answers[0].set_result([])
        await turns()
        # The two that waited leave together.
        assert sender.stream.sent[4] == {"done": [("4", "token", 4), ("5", "token", 5)]}

    asyncio.run(main())


def test_p46_no_note_has_more_items_than_the_server_takes():
    async def main() -> None:
        sender = Sender()
        for number in range(1_200):
            sender.add(number, is_last=number == 1_199)
        await turns()
        assert [len(each["done"]) for each in sender.stream.sent] == [500, 500, 200]

    asyncio.run(main())


def test_p47_a_refused_completion_is_a_warning_and_counted(caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        sender = Sender()
        sender.add(0)
        sender.add(1, is_last=True)
        await turns()
        refusal = notes.Refused("done", 1, "not_your_lease", "the lease was lost")
        sender.stream.answers[0].set_result([refusal])
        await turns()
        assert sender.refused == ["1"]

    with caplog.at_level(logging.WARNING, "manyhands.worker"):
        asyncio.run(main())
    assert "job 1 of task noop, which ran 0.000 s" in caplog.text
    assert "the lease was lost" in caplog.text


def ids_of(sent: dict) -> list[str]:
    return [report[0] for reports in sent.values() for report in reports]


def test_p24_a_report_that_is_refused_as_a_whole_costs_only_the_job_to_blame():
    """P7: that one fails, since its result cannot be stored; it is not left with the worker."""

    async def main() -> None:
        sender = Sender()
        for number in range(4):
            sender.add(number, is_last=number == 3)
        answered = 0
        await turns()
        while answered < len(sender.stream.sent):
            sent, answer = sender.stream.sent[answered], sender.stream.answers[answered]
            answered += 1
            if "2" in ids_of(sent) and "done" in sent:
                answer.set_exception(Refused("payload_too_large", "too large"))
            else:
                answer.set_result([])
            await turns()
        accepted = [ids_of(each) for each in sender.stream.sent if "2" not in ids_of(each)]
        assert accepted == [["0", "1"], ["3"]]
        last = sender.stream.sent[-1]["failed"]
        assert [(each[0], each[2], each[5]) for each in last] == [("2", "bad_result", True)]
        await sender.reports.wait()

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "is_said"), [(GIVEN_BACK, False), (COMPLETED, True)])
def test_p51_a_job_that_came_too_late_is_no_problem_and_a_lost_report_is_one(caplog, kind, is_said):
    async def main() -> None:
        sender = Sender()
        sender.add(0, kind, is_last=True)
        await turns()
        sender.stream.answers[0].set_exception(Refused("closed", "this client was closed"))
        await turns()

    asyncio.run(main())

    assert ("was refused" in caplog.text) is is_said


def test_waiting_ends_when_everything_is_answered():
    async def main() -> None:
        sender = Sender()
        sender.add(0)
        waiting = asyncio.ensure_future(sender.reports.wait())
        await turns()
        assert not waiting.done()
        sender.stream.answers[0].set_result([])
        await waiting

    asyncio.run(main())
