"""What all tests share."""

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.databases import database
from tests.e2e import described

# A machine that is busy with something else is no defect of what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
for part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 120.0)
described.install()


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """A private PostgreSQL for all tests of this process; each uses a schema of its own. It does
    not sync: tests of crashes start one that does.
    """
    with database(tmp_path_factory.mktemp("postgresql")) as one:
        yield one
