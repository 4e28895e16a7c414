"""One server for all tests of a module; each test uses queues of its own."""

import pytest

from tests.e2e.serving import Api, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):
    with serving(tmp_path_factory.mktemp("served"), "--store", store_of_module) as server:
        yield server


@pytest.fixture
def api(served):
    client = Api(served)
    yield client
    client.close()


# Brackets would be read as part of a pattern of queues.
_PLAIN = str.maketrans("[]", "()")


@pytest.fixture
def queue(request) -> str:
    return request.node.name[:200].translate(_PLAIN)
