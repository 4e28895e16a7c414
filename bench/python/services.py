"""Private servers for the peers: PostgreSQL and Redis on free ports, in folders of their own."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_LIMIT = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args} did not start") from None
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def _running(process: subprocess.Popen[bytes], port: int) -> Iterator[None]:
    try:
        _wait_for(port, process)
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL as the distribution ships it, flushing at each commit. Gives its address."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda found: found.parent.name)
    # PostgreSQL refuses to run as root: its package brings a user for it.
    user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    home = folder / "postgres"
    home.mkdir()
    if user:
        owner = pwd.getpwnam("postgres")
        for each in (folder, *folder.parents):
            if each.stat().st_uid == 0 and each.is_relative_to("/tmp"):
                each.chmod(each.stat().st_mode | 0o011)
        os.chown(home, owner.pw_uid, owner.pw_gid)
    data = home / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=home, **user)
    port = free_port()
    with (folder / "postgres.log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-k", home, "-h", "127.0.0.1"],
            stdout=log,
            stderr=log,
            cwd=home,
            **user,
        )
    with _running(process, port):
        address = f"postgresql://bench@127.0.0.1:{port}/postgres"
        yield address


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis that flushes its append-only file before it answers."""
    home = folder / "redis"
    home.mkdir()
    port = free_port()
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed")
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", ""]
    settings += ["--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([program, *settings], stdout=log, stderr=log)
    with _running(process, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def manyhands(folder: Path) -> Iterator[tuple[str, str]]:
    """Our server, with its event log and all it does by default. Gives its URL, and its address
    for Gearman.
    """
    home = folder / "manyhands"
    home.mkdir()
    port = free_port()
    gearman = f"127.0.0.1:{free_port()}"
    off = [each for name in ("dwork", "wmp", "amqp") for each in (f"--{name}", "off")]
    addresses = ["--http", f"127.0.0.1:{port}", "--gearman", gearman]
    with (folder / "manyhands.log").open("wb") as log:
        process = subprocess.Popen(
            ["manyhands", "serve", "--data", home / "data", *addresses, *off],
            stdout=log,
            stderr=log,
        )
    with _running(process, port):
        yield f"http://127.0.0.1:{port}", gearman
