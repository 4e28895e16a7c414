"""A private PostgreSQL for tests: on a free port, in a directory of its own, stopped by its id."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
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


def own_folder() -> Path:
    """A directory of the user that PostgreSQL runs as. Not below pytest's, which only root may
    enter.
    """
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    if os.getuid() == 0:
        shutil.chown(folder, _USER, _USER)
    return folder


class Database:
    """One instance. ``durable`` ones sync, as tests of crashes need; a ``standby_of`` another one
    follows it until it is promoted.
    """

    def __init__(
        self, *, durable: bool = False, standby_of: "Database | None" = None, **settings: str
    ) -> None:
        self._programs = require_postgresql()
        self.folder = own_folder()
        self.data = self.folder / "data"
        self.port = own_port()
        self._durable = durable
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        if standby_of is None:
            words = ("-U", _USER, "-A", "trust", "-E", "UTF8", "-N")
            self._run("initdb", "-D", str(self.data), *words)
        else:
            self._copy(standby_of)
        self.start()

    def _copy(self, primary: "Database") -> None:
        source = f"host=127.0.0.1 port={primary.port} user={_USER}"
        words = ("-c", "fast", "-X", "stream", "-R", "--no-sync")
        self._run("pg_basebackup", "-D", str(self.data), "-d", source, *words)

    def follow(self, primary: "Database") -> None:
        """Becomes a standby of another one, from nothing."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.data)
        self._copy(primary)
        self.start()

    def set(self, name: str, value: str) -> None:
        """Changes a setting of the running instance."""
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """A standby becomes the primary; it waits for no other one."""
        self.set("synchronous_standby_names", "''")
        with self.connect() as connection:
            connection.execute("SELECT pg_promote()")

    def has_standby(self) -> bool:
        """Whether a commit waits for a standby, and one is there."""
        with self.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchone()
        return row is not None and row[0] == 1

    def _as_user(self, *command: str) -> list[str]:
        return ["runuser", "-u", _USER, "--", *command] if os.getuid() == 0 else list(command)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self._as_user(str(self._programs / program), *arguments),
            check=False,
            capture_output=True,
            cwd="/",
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode(errors='replace')}"

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
            "wal_retrieve_retry_interval": "100ms",  # of a standby whose primary comes back
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

    @property
    def is_up(self) -> bool:
        return self._process is not None

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

    def close(self) -> None:
        """Ends it, with all its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

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


class Replicated:
    """A primary and a standby that follows it; an address names both. ``synchronous``: a commit
    waits for the standby.
    """

    def __init__(self, *, synchronous: bool = True) -> None:
        self._synchronous = synchronous
        self.primary = Database(durable=True)
        self.standby = Database(durable=True, standby_of=self.primary)
        self._both = sorted((self.primary.port, self.standby.port))
        self._rely()

    def _rely(self) -> None:
        if self._synchronous:
            self.primary.set("synchronous_standby_names", "'*'")
            while not self.primary.has_standby():
                time.sleep(0.01)

    def part(self) -> None:
        """The standby is down: it lacks what is committed from now on, and no commit waits."""
        if self._synchronous:
            self.primary.set("synchronous_standby_names", "''")
        self.standby.stop()

    def fail_over(self) -> None:
        """The primary is killed, and the standby promoted."""
        self.primary.stop(signal.SIGQUIT)
        if not self.standby.is_up:
            self.standby.start()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def heal(self) -> None:
        """The one that was killed follows the other."""
        self.standby.follow(self.primary)
        self._rely()

    def restart(self) -> None:
        """The primary, as after a crash."""
        self.primary.restart()

    def connect(self) -> psycopg.Connection:
        return self.primary.connect()

    def url(self, schema: str | None = None) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._both)
        query = "" if schema is None else f"?schema={schema}"
        return f"postgresql://{_USER}@{hosts}/postgres{query}"

    def new_schema(self) -> str:
        return self.primary.new_schema()

    def close(self) -> None:
        for one in (self.primary, self.standby):
            one.close()


@contextlib.contextmanager
def database(*, durable: bool = False, **settings: str) -> Iterator[Database]:
    """An instance for the length of a block."""
    one = Database(durable=durable, **settings)
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def replicated(*, synchronous: bool = True) -> Iterator[Replicated]:
    """A primary and a standby for the length of a block."""
    both = Replicated(synchronous=synchronous)
    try:
        yield both
    finally:
        both.close()
