"""One RabbitMQ for all tests here, and servers with an endpoint of their own."""

import os

import pytest

from tests.amqp.rabbit import Rabbit, is_installed
from tests.e2e.serving import Api, serving


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory):
    if not is_installed():
        reason = "rabbitmq-server or openssl is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    node = Rabbit(tmp_path_factory.mktemp("rabbit") / "node")
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path, "--amqp", "127.0.0.1:0", "--store", "memory") as server:
        yield server


@pytest.fixture
def api(served):
    client = Api(served)
    yield client
    client.close()
