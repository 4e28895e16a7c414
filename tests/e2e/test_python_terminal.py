"""``manyhands worker`` on a terminal: a line that lives, below what it reports."""

import os
import pty
import signal
import subprocess
import termios
import threading

from manyhands import App
from tests.e2e.serving import SECONDS_MAX, command, environment
from tests.e2e.working import until, write_module

CODE = """
    import sys, time
    from manyhands import App

    app = App()

    @app.task(name="QUEUE", retries=0)
    def work(number: int) -> int:
        return 1 // number

    @app.task(name="QUEUE-print")
    def write(seconds: float) -> None:
        print(1)
        time.sleep(seconds)  # the view is drawn meanwhile
        sys.stderr.write("two\\n")
        time.sleep(seconds)
        print("th", end="", flush=True)
        time.sleep(seconds)
        print("ree")
"""
COLUMNS = 60  # too few for the view


class Screen:
    """What somebody sees who looks at a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._said = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65_536):
                self._said += data
        except OSError:
            pass  # the other end is closed

    def rows(self) -> list[str]:
        rows: list[list[str]] = [[]]
        column = 0
        for character in self._said.decode(errors="replace").replace("\x1b[2K", "\v"):
            match character:
                case "\r":
                    column = 0
                case "\n":
                    rows.append([])
                    column = 0
                case "\v":
                    rows[-1].clear()
                case _:
                    if column == COLUMNS:
                        rows.append([])
                        column = 0
                    row = rows[-1]
                    row += " " * (column - len(row))
                    row[column : column + 1] = character
                    column += 1
        return ["".join(row) for row in rows]


def test_p53_a_terminal_shows_what_a_worker_does_and_mixes_nothing(served, queue, tmp_path):
    """And a worker whose errors go elsewhere writes no such line."""
    app = App(served.url)

    @app.task(name=queue, retries=0)
    def work(number: int) -> int: ...

    @app.task(name=f"{queue}-print")
    def write(seconds: float) -> None: ...

    write_module(tmp_path, CODE.replace("QUEUE", queue))
    near, far = pty.openpty()
    termios.tcsetwinsize(far, (25, COLUMNS))
    screen = Screen(near)
    process = subprocess.Popen(
        command("worker", "tasks:app"),
        env=environment() | {"MANYHANDS_URL": served.url},
        cwd=tmp_path,
        stdout=far,
        stderr=far,
    )
    os.close(far)
    try:
        until(lambda: "1 process · 0 running" in screen.rows()[-1], screen.rows)
        work.map([1, 1, 1, 0])
        until(lambda: "3 completed · 1 f" in screen.rows()[-1], screen.rows)
        write.submit(1.5).result(SECONDS_MAX)
        until(lambda: "4 completed · 1 f" in screen.rows()[-1], screen.rows)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()
        os.close(near)
    *reported, last = screen.rows()
    assert last == ""
    assert not [row for row in reported if " running ·" in row]
    assert "ZeroDivisionError" in "".join(reported)
    assert [row for row in reported if row in ("1", "two", "three")] == ["1", "two", "three"]
    app.close()
