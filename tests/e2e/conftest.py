"""One server for all tests of a module; each test uses queues of its own.

Modules that name their ``STORES`` run on each of them, the others in memory.
"""

import pytest

from tests.e2e.serving import Api, serving


def pytest_generate_tests(metafunc):
    if "store_of_module" in metafunc.fixturenames:
        stores = getattr(metafunc.module, "STORES", ("memory",))
        metafunc.parametrize("store_of_module", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def store_of_module(request):
    """What `--store` says."""
    if request.param != "postgresql":
        return request.param
    postgresql = request.getfixturevalue("postgresql")
    return postgresql.url(postgresql.new_schema())


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):
    with serving(tmp_path_factory.mktemp("served"), "--store", store_of_module) as server:
        yield server


@pytest.fixture
def api(served):
    client = Api(served)
    yield client
    client.close()


@pytest.fixture
def queue(request) -> str:
    return request.node.name[:200]
