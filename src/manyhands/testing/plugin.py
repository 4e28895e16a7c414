"""The pytest plugin: fixtures ``manyhands`` and ``manyhands_server``.

pytest imports this in every run, so that it imports nothing until a test asks for a fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from manyhands.testing.control import Manyhands
    from manyhands.testing.process import ServerProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the ini file."""
    parser.addini(
        "manyhands_eager",
        "Jobs of tests with the fixture `manyhands` run in their submits.",
        type="bool",
        default=False,
    )


@pytest.fixture
def manyhands(request: pytest.FixtureRequest) -> "Iterator[Manyhands]":
    """An engine in memory, on a clock that the test turns; all apps are bound to it (P78)."""
    from manyhands.testing.binding import bound  # noqa: PLC0415 - only where it is needed

    with bound() as found:
        if request.config.getini("manyhands_eager"):
            found.eager()
        yield found


@pytest.fixture(scope="session")
def manyhands_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ServerProcess]":
    """A real ``manyhands serve`` on free ports, in a process and a directory of its own (P83)."""
    from manyhands.testing.process import ServerProcess  # noqa: PLC0415

    with ServerProcess(tmp_path_factory.mktemp("manyhands")) as found:
        yield found
