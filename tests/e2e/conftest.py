"""One server in memory for all tests of a module; each test uses queues of its own."""

import pytest

from tests.e2e.serving import Api, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served"), "--store", "memory") as server:
        yield server


@pytest.fixture
def api(served):
    client = Api(served)
    yield client
    client.close()


@pytest.fixture
def queue(request) -> str:
    return request.node.name[:200]
