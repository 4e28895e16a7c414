"""Outputs of other jobs, fetched before a task runs (P19)."""

import asyncio

import msgspec

from manyhands import App
from manyhands.client import notes
from manyhands.client.worker.dependencies import Dependencies
from manyhands.client.worker.run import Run

app = App("http://127.0.0.1:1")


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


class Stream:
    """Shows every job as completed, its number being its result."""

    def __init__(self) -> None:
        self.looks: list[list[str]] = []

    async def look(self, ids: list[str]) -> list[notes.View]:
        self.looks.append(list(ids))
        return [notes.View(each, "completed", each.lstrip("0").encode(), "json") for each in ids]


def run_of(number: int, *needed: int) -> Run:
    outputs = [{"$output": f"{each:032d}"} for each in needed]
    payload = msgspec.json.encode({"numbers": outputs})
    headers = {"outputs": "1"} if needed else None
    given = notes.Job(str(number), "total", "token", 1, 0, payload, "json", None, headers)
    return Run(given, total, None, 0.0)  # type: ignore[arg-type]


def test_p19_one_question_serves_all_jobs_of_a_message():
    async def main() -> None:
        stream, admitted, refused = Stream(), [], []
        dependencies = Dependencies(
            stream,  # type: ignore[arg-type]
            admitted.append,
            lambda run, _: refused.append(run),
        )
        runs = [run_of(1, 11, 12), run_of(2, 12, 13), run_of(3, 11)]

        assert all(dependencies.await_outputs(run) for run in runs)
        assert not dependencies.await_outputs(run_of(4))  # nothing is looked for in its payload
        for _ in range(5):
            await asyncio.sleep(0)

        assert stream.looks == [[f"{each:032d}" for each in (11, 12, 13)]]
        assert [bytes(run.payload) for run in admitted] == [
            b'{"numbers":[11,12]}',
            b'{"numbers":[12,13]}',
            b'{"numbers":[11]}',
        ]
        assert not refused

    asyncio.run(main())
