"""Several servers share the durable queues of watchers: each is served by one at a time."""

import pytest

from manyhands.model.commands import SetCursor
from manyhands.net.amqp import AmqpError, Code
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.homes import Homes
from manyhands.protocols.amqp.queues import Traits
from tests.unit.protocols.amqp_room import EXCHANGE, Log

DURABLE = Traits(durable=True)


class World:
    """Two servers that see the same cursors."""

    def __init__(self) -> None:
        self.cursors = {}
        self.alive = {"a", "b"}
        self.servers = {name: self._broker(name) for name in "ab"}

    def _broker(self, name: str) -> Broker:
        def others() -> dict[str, str]:
            return {other: f"server {other}" for other in self.alive - {name}}

        def ask(command, settle=None, refused=None):  # noqa: ARG001
            if isinstance(command, SetCursor):
                self.cursors[command.cursor.name] = command.cursor

        homes = Homes(name, lambda: self.cursors, others)
        return Broker((EXCHANGE,), Log(), ask, lambda: None, homes=homes)

    def declare(self, name: str) -> None:
        """A durable queue, at this server."""
        broker = self.servers[name]
        broker.adopt("q", 0)
        broker.save(broker.declare("q", DURABLE, 0), lambda _refusal: None)


@pytest.fixture
def world() -> World:
    return World()


def test_a_queue_that_is_served_elsewhere_is_locked(world):
    world.declare("a")

    with pytest.raises(AmqpError) as refused:
        world.declare("b")

    assert refused.value.code == Code.RESOURCE_LOCKED
    assert "is served by server server a" in str(refused.value)


def test_a_queue_whose_server_is_gone_is_taken_on_with_its_position(world):
    world.declare("a")
    world.alive.discard("a")

    world.servers["b"].adopt("q", 0)

    assert world.servers["b"].queues["q"].traits == DURABLE
    world.alive.add("a")
    with pytest.raises(AmqpError):
        world.servers["a"].adopt("q", 0)


def test_of_two_servers_that_take_on_a_queue_at_once_the_later_one_has_it(world):
    early, late = world.servers["a"], world.servers["b"]
    early.declare("q", DURABLE, 0)
    ended = []
    early.queues["q"].consumers.append(_Consumer(ended))
    world.declare("b")

    for broker in (early, late):
        broker.note(world.cursors)

    assert "q" not in early.queues
    assert ended == ["told"]
    assert "q" in late.queues


class _Consumer:
    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def end(self) -> None:
        self._ended.append("told")
