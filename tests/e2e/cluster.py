"""Several real servers on one private PostgreSQL."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.databases import Database, Replicated
from tests.e2e.serving import Served, own_address, start, wait_until
from tests.e2e.wires import Wire, Wires

ALL = ("gearman", "dwork", "wmp", "amqp")


class Cluster:
    """Servers by name; each can be killed, stopped, stalled and started again. With ``wired``, the
    others reach each of them over a wire of its own.
    """

    def __init__(
        self,
        folder: Path,
        database: Database | Replicated,
        *arguments: str,
        wired: bool = False,
    ) -> None:
        self.folder = folder
        self.database = database
        self.schema = database.new_schema()
        self.servers: dict[str, Served] = {}
        self.names: tuple[str, ...] = ()  # of all that there ever were, in order
        self._arguments = arguments
        self._starts = 0
        self.secret = folder / "cluster.secret"
        self.secret.write_text("a secret that all servers of a test share")
        self.secret.chmod(0o600)
        self.wires: dict[str, Wire] = {}
        self._wires = Wires() if wired else None

    def _listening(self, name: str, address: str) -> tuple[str, ...]:
        """Where the others reach it."""
        if self._wires is None:
            return ("--cluster", address)
        address = own_address()
        wire = self.wires[name] = self._wires.to(address)
        return ("--cluster", address, "--advertise", wire.address)

    def start(
        self, name: str, *arguments: str, store: str = "", address: str = "127.0.0.1:0"
    ) -> Served:
        """``store`` and ``address``: where it reaches the database, and listens for the others."""
        self._starts += 1
        self.names = tuple(sorted({*self.names, name}))
        folder = self.folder / f"{name}{self._starts}"
        folder.mkdir()
        self.servers[name] = start(
            folder,
            "--store",
            store or self.database.url(self.schema),
            *self._listening(name, address),
            "--cluster-secret-file",
            str(self.secret),
            "--server-name",
            name,
            *self._arguments,
            *arguments,
        )
        return self.servers[name]

    def kill(self, name: str) -> None:
        server = self.servers.pop(name)
        server.process.kill()
        server.process.wait()
        self.unwire(name)

    def stop(self, name: str) -> int:
        code = self.servers.pop(name).stop(signal.SIGTERM)
        self.unwire(name)
        return code

    def unwire(self, name: str) -> None:
        """Nobody listens there any more."""
        if name in self.wires:
            self.wires.pop(name).close()

    def servers_seen(self, name: str) -> list[dict]:
        answer = httpx.get(f"{self.servers[name].url}/api/servers", timeout=10.0)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    def decider(self) -> str:
        """The name of the server that decides, once all agree."""

        def found() -> str | None:
            names = {
                row["name"]
                for name in self.servers
                for row in self.servers_seen(name)
                if row["decides"]
            }
            (name, *others) = names or ("",)
            return name if name in self.servers and not others else None

        return wait_until(found)

    def until_ready(self) -> None:
        for server in list(self.servers.values()):
            wait_until(lambda server=server: is_ready(server))

    def close(self) -> None:
        for server in list(self.servers.values()):
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            server.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(10)
        for name in list(self.wires):
            self.unwire(name)
        if self._wires is not None:
            self._wires.close()


def is_ready(server: Served) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def running(
    folder: Path,
    database: Database | Replicated,
    *names: str,
    wired: bool = False,
    **options: str,
) -> Iterator[Cluster]:
    arguments = [word for name in ALL for word in (f"--{name}", "127.0.0.1:0")]
    for option, value in options.items():
        arguments += [f"--{option.replace('_', '-')}", value]
    cluster = Cluster(folder, database, *arguments, wired=wired)
    try:
        for name in names:
            cluster.start(name)
        yield cluster
    finally:
        cluster.close()
