"""What all tests share."""

import httpx
from hypothesis import HealthCheck, settings

from tests.e2e import described

# A machine that is busy with something else is no defect of what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
for part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 120.0)
described.install()
