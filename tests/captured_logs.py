"""What our loggers were given, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from manyhands.loggers import PROCESSORS


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """The records that are made meanwhile."""
    kept = list(PROCESSORS)
    captured = structlog.testing.LogCapture()
    PROCESSORS[:] = [structlog.stdlib.add_log_level, captured]
    try:
        yield captured.entries
    finally:
        PROCESSORS[:] = kept
