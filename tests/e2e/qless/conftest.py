"""One server of each store for the tests of this folder; each test uses queues of its own."""

import re
import uuid

import pytest

from tests.e2e.qless.talk import Qless
from tests.e2e.serving import serving


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):
    with serving(tmp_path_factory.mktemp("qless"), "--store", store_of_module) as server:
        yield server


@pytest.fixture
def q(served):
    """A client without a name."""
    client = Qless(served)
    yield client
    client.close()


@pytest.fixture
def one(q):
    """A worker."""
    return q.also("worker-1")


@pytest.fixture
def two(q):
    """Another worker."""
    return q.also("worker-2")


@pytest.fixture
def queue(request) -> str:
    return re.sub("[^a-z0-9_]", "-", request.node.name)[:150]


@pytest.fixture
def fresh():
    """Ids that no test had before."""
    return lambda: uuid.uuid4().hex[:12]
