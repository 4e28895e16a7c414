"""What our workers run: a no-op as a function and as a coroutine, one that sleeps, one that
computes, one that says when it began.
"""

import asyncio
import time

import tally

from manyhands import App

NAP_SECONDS = 0.01
BURN_SECONDS = 0.05

app = App()
add = tally.counter()


@app.task
def noop(text: str) -> None:  # noqa: ARG001 - what a job carries
    add()


@app.task
async def anoop(text: str) -> None:  # noqa: ARG001
    add()


@app.task
def begun(text: str) -> float:  # noqa: ARG001
    return time.monotonic()


@app.task
async def nap(text: str) -> None:  # noqa: ARG001
    await asyncio.sleep(NAP_SECONDS)
    add()


@app.task
def burn(text: str) -> None:  # noqa: ARG001
    until = time.thread_time() + BURN_SECONDS
    while time.thread_time() < until:
        pass
    add()
