"""Three servers on a private PostgreSQL, to look at: kill one, and watch another take over.

Run it with ``make serve-cluster``. PostgreSQL's programs must be installed (Debian: postgresql).
Everything lives in a temporary directory and is gone when this program ends.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

NAMES = ("a", "b", "c")
USER = "postgres"


def programs() -> Path:
    """Where PostgreSQL is: in the path, or where Debian puts it."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not places:
        raise SystemExit("PostgreSQL is not installed (Debian: apt install postgresql).")
    return places[-1].parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def database(folder: Path) -> Iterator[str]:
    """Runs a private PostgreSQL; gives its address."""
    found, port, data = programs(), free_port(), folder / "data"
    as_user = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(folder, USER)
    made = [*as_user, str(found / "initdb"), "-D", str(data), "-U", USER, "-A", "trust"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd="/")
    settings = (f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}")
    given = [word for setting in settings for word in ("-c", setting)]
    server = subprocess.Popen(
        [*as_user, str(found / "postgres"), "-D", str(data), *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C ends the servers first
    )
    try:
        ready = [str(found / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False).returncode:
            if server.poll() is not None:
                raise SystemExit("PostgreSQL did not start.")
            time.sleep(0.1)
        yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)
        server.wait()


def start(name: str, address: str, secret: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a server; gives its process and its port for HTTP."""
    port = free_port()
    options = {
        "store": address,
        "cluster": "127.0.0.1:0",
        "cluster-secret-file": str(secret),
        "server-name": name,
        "http": f"127.0.0.1:{port}",
        "log-level": "warning",
    }
    for listener in ("gearman", "dwork", "wmp", "amqp"):
        options[listener] = "127.0.0.1:0"
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "manyhands", "serve", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True), port


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends everything, as Ctrl-C does
    with tempfile.TemporaryDirectory(prefix="manyhands-cluster-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        secret = place / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        (place / "postgresql").mkdir()
        with database(place / "postgresql") as address:
            started = {name: start(name, address, secret) for name in NAMES}
            print(f"PostgreSQL: {address}")
            for name, (process, port) in started.items():
                print(f"server {name}: http://127.0.0.1:{port}/ui/servers (kill -9 {process.pid})")
            print("Ctrl-C ends everything.", flush=True)
            try:
                while any(process.poll() is None for process, _ in started.values()):
                    time.sleep(0.5)
            except KeyboardInterrupt:
                pass
            finally:
                for process, _ in started.values():
                    if process.poll() is None:
                        process.terminate()
                for process, _ in started.values():
                    process.wait()


if __name__ == "__main__":
    main()
