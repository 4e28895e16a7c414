"""What all tests share."""

from collections import defaultdict

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.databases import database
from tests.e2e import described, serving

# A machine that is busy with something else is no defect of what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
for part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 120.0)
described.install()


@pytest.fixture(scope="session")
def postgresql():
    """A private PostgreSQL for all tests of this process; each uses a schema of its own. It does
    not sync: tests of crashes start one that does.
    """
    with database() as one:
        yield one


def pytest_generate_tests(metafunc):
    """Modules that name their ``STORES`` run on each of them, the others in memory. ``own`` is what
    each test asks for.
    """
    if "store_of_module" in metafunc.fixturenames:
        stores = [
            pytest.param(store, marks=pytest.mark.postgresql if store == "postgresql" else ())
            for store in getattr(metafunc.module, "STORES", ("memory",))
        ]
        metafunc.parametrize("store_of_module", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def store_of_module(request):
    """What `--store` says."""
    if request.param != "postgresql":
        yield request.param
        return
    postgresql = request.getfixturevalue("postgresql")
    if "own" not in request.module.STORES:
        yield postgresql.url(postgresql.new_schema())
        return
    schemas = defaultdict(postgresql.new_schema)
    serving.store_of = lambda folder: postgresql.url(schemas[folder])
    yield request.param
    serving.store_of = None
