"""Who may begin beside whom, on a real PostgreSQL."""

import threading
from collections.abc import Iterator

import pytest

from manyhands.config.database import read_address
from manyhands.store.contract import StoreError
from manyhands.store.postgres import schema, tenure
from manyhands.store.postgres.sessions import connect
from manyhands.store.postgres.shared import SharedStore
from manyhands.store.postgres.store import Joining
from manyhands.store.retention import Retention
from tests.e2e.serving import Api, run, serving


class Rival:
    """Another server, which comes just when this one has looked around."""

    def __init__(self, address, server: str, where: str) -> None:
        self._address = address
        self._server = server
        self._where = where
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def join(self) -> None:
        with connect(self._address) as connection:
            name = self._address.schema
            connection.execute(
                f"INSERT INTO {name}.tenures(server, incarnation, address, process, slot, version,"
                " link_min, link_max, frames, state)"
                " VALUES(%s, 'rival', %s, 'elsewhere', 0, '', 1, 1, 2, 'serving')",
                (self._server, self._where),
            )
        self._thread.start()

    def _beat(self) -> None:
        with connect(self._address) as connection:
            while not self._ends.wait(0.05):
                connection.execute(f"UPDATE {self._address.schema}.tenures SET beats = beats + 1")

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture
def address(postgresql):
    found = read_address(postgresql.url(postgresql.new_schema()))
    with connect(found) as connection:
        schema.migrate(connection, found)
    return found


@pytest.fixture
def comes_meanwhile(address, monkeypatch) -> Iterator[None]:
    """Has a rival join between the look around and the join."""
    rivals: list[Rival] = []
    join = tenure.join

    def begin(server: str, where: str) -> None:
        def joined(*arguments, **options):
            if not rivals:
                rivals.append(Rival(address, server, where))
                rivals[0].join()
            return join(*arguments, **options)

        monkeypatch.setattr(tenure, "join", joined)

    yield begin
    for rival in rivals:
        rival.end()


@pytest.mark.parametrize(
    ("server", "where", "sentence"),
    [
        ("a", "10.0.0.1:7750", "a server named a is up at 10.0.0.1:7750"),
        ("b", "somewhere", "without --cluster, so it has to be alone"),
    ],
    ids=["same name", "alone"],
)
def test_a_server_that_joins_in_the_same_moment_is_seen(
    address, comes_meanwhile, server, where, sentence
):
    """S17 and S76."""
    comes_meanwhile(server, where)

    with pytest.raises(StoreError, match=sentence):
        SharedStore(address, Retention(), joining=Joining("a", "mine", address="127.0.0.1:1"))

    with connect(address) as connection:
        rows = connection.execute(f"SELECT incarnation FROM {address.schema}.tenures").fetchall()
    assert rows == [("rival",)]


def test_the_journal_of_a_newer_version_is_left_alone(tmp_path, postgresql):
    """S61: a server takes over only what it understands."""
    schema_name = postgresql.new_schema()
    url = postgresql.url(schema_name)
    with serving(tmp_path, "--store", url) as served:
        api = Api(served)
        job_id = api.results("submit", queue="q")["id"]
        api.close()
        served.process.kill()
        served.process.wait()
        with postgresql.connect() as connection:
            tenures = f"{schema_name}.tenures"
            connection.execute(f"UPDATE {tenures} SET frames = 99")
            refused = run("serve", "--store", url, "--http", "off")
            connection.execute(f"UPDATE {tenures} SET frames = 2")

    assert refused.returncode == 1
    assert "was written by a newer version of manyhands (frames 99" in refused.stderr
    assert "nothing was removed" in refused.stderr
    (tmp_path / "next").mkdir()
    with serving(tmp_path / "next", "--store", url) as served:
        api = Api(served)
        assert api.get(f"jobs/{job_id}")["state"] == "ready"
        api.close()
