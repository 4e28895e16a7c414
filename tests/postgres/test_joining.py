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
