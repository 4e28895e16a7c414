"""The thread of all clients of a process, and the ways in and out of it."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import weakref

from manyhands import App
from manyhands.client import home
from tests.unit.client.fake_server import fake_server

SECONDS_MAX = 90.0


def test_p32_a_loop_that_is_over_is_not_kept():
    """A web framework may make one for each request."""

    def used_loop(app: App) -> "weakref.ref[asyncio.AbstractEventLoop]":
        async def submit() -> "weakref.ref[asyncio.AbstractEventLoop]":
            await app.tasks["add"].asubmit(1)
            return weakref.ref(asyncio.get_running_loop())

        return asyncio.run(submit())

    with fake_server() as server:
        app = App(server.url, timeout=SECONDS_MAX)

        @app.task
        def add(a: int) -> int:
            return a

        loops = [used_loop(app) for _ in range(3)]
        app.close()
    gc.collect()

    assert [loop() for loop in loops] == [None] * 3
    assert not [loop for loop in home._outgoing if loop.is_closed()]


def test_p32_a_submit_after_the_end_of_the_program_is_an_error_and_no_wait():
    code = """
        import atexit

        def late():
            try:
                add.submit(1)
            except Exception as error:
                print(type(error).__name__, flush=True)

        atexit.register(late)  # before the client's own
        from manyhands import App, Unavailable

        app = App("http://127.0.0.1:1", timeout=0.1)

        @app.task
        def add(a: int) -> int:
            return a

        try:
            add.submit(1)
        except Unavailable:
            print("away", flush=True)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )

    assert done.stdout.split()[0] == "away"
    assert done.stdout.split()[1] in ("Refused", "RuntimeError")
    assert done.stderr == ""
