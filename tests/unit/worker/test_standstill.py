"""Children whose loop stands still (P60)."""

import asyncio

import pytest

from manyhands.client import notes
from manyhands.client.worker.standstill import Standstill


class Child:
    """Holds the interpreter, and runs one job."""

    name, pid, is_ready = "child", 1, True

    def __init__(self) -> None:
        self.was_killed = False
        self.page = self

    def read(self) -> dict[str, int]:
        return {"ticks": 7}

    def running(self) -> list[tuple[str, str]]:
        return [("0", "token")]

    def kill(self) -> None:
        self.was_killed = True


class Stream:
    """Answers every renewal alike."""

    is_open = True

    def __init__(self, code: str) -> None:
        self._refused = [notes.Refused("renewed", 0, code, "a sentence")]

    def report(self, renewed: list[tuple[str, str]]) -> "asyncio.Future[list[notes.Refused]]":
        assert renewed
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(self._refused)
        return answered


@pytest.mark.parametrize(
    ("code", "is_killed"), [("lease_lost", True), ("unavailable", False), ("store_failed", False)]
)
def test_p60_a_child_is_killed_for_a_lost_lease_and_not_for_a_server_that_cannot_decide(
    code, is_killed
):
    async def main() -> None:
        child, stream = Child(), Stream(code)
        standstill = Standstill(child, 0.0)  # type: ignore[arg-type]
        for second in range(1, 30):
            standstill.look(stream, float(second))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        assert child.was_killed is is_killed

    asyncio.run(main())
