"""The no-op that our workers run, as a function and as a coroutine."""

import tally

from manyhands import App

app = App()
add = tally.counter()


@app.task
def noop(text: str) -> None:  # noqa: ARG001 - what a job carries
    add()


@app.task
async def anoop(text: str) -> None:  # noqa: ARG001
    add()
