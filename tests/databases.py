"""A private PostgreSQL for tests: on a free port, in a directory of its own, stopped by its id."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.serving import own_port

_USER = "postgres"
_numbers = itertools.count(1)


def binaries() -> Path | None:
    """Where PostgreSQL's programs are: where Debian puts them, or in the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if places:
        return places[-1].parent
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found is not None else None


def require_postgresql() -> Path:
    """Its programs; without them a test is skipped, or fails where everything must be there."""
    found = binaries()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("PostgreSQL is not installed")
        pytest.skip("PostgreSQL is not installed")
    return found


class Database:
    """One instance. ``durable`` ones sync, as tests of crashes need."""

    def __init__(self, folder: Path, *, durable: bool = False, **settings: str) -> None:
        self._programs = require_postgresql()
        self.folder = folder
        self.data = folder / "data"
        self.port = own_port()
        self._durable = durable
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            shutil.chown(folder, _USER, _USER)
            for place in folder.parents:  # down to it, for the other user
                with contextlib.suppress(OSError):
                    place.chmod(place.stat().st_mode | 0o011)
        self._run("initdb", "-D", str(self.data), "-U", _USER, "-A", "trust", "-E", "UTF8", "-N")
        self.start()

    def _as_user(self, *command: str) -> list[str]:
        return ["runuser", "-u", _USER, "--", *command] if os.getuid() == 0 else list(command)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            self._as_user(str(self._programs / program), *arguments),
            check=True,
            capture_output=True,
            cwd="/",
        )

    def start(self) -> None:
        sync = "on" if self._durable else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": sync,
            "full_page_writes": sync,
            "max_connections": "60",
            "shared_buffers": "32MB",
            **self._settings,
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user(str(self._programs / "postgres"), "-D", str(self.data), *given),
                stdout=log,
                stderr=log,
                cwd="/",
            )
        deadline = time.monotonic() + 90
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order, SIGQUIT at once, as a crash would."""
        if self._process is None:
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(self._postmaster(), how)
        self._process.wait(90)
        self._process = None

    def restart(self) -> None:
        """As after a crash."""
        self.stop(signal.SIGQUIT)
        self.start()

    def connect(self, name: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user={_USER} dbname={name} connect_timeout=5",
            autocommit=True,
        )

    def url(self, schema: str | None = None, name: str = "postgres", user: str = _USER) -> str:
        query = "" if schema is None else f"?schema={schema}"
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}{query}"

    def new_schema(self) -> str:
        return f"test_{next(_numbers)}"

    def terminate(self) -> int:
        """Cuts all connections but the one that does it."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchall()
        return len(rows)


@contextlib.contextmanager
def database(folder: Path, *, durable: bool = False, **settings: str) -> Iterator[Database]:
    """An instance for the length of a block."""
    one = Database(folder, durable=durable, **settings)
    try:
        yield one
    finally:
        one.stop(signal.SIGQUIT)
