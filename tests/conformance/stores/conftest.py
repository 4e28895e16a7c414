import pytest

from manyhands.config.database import read_address
from tests.conformance.stores.opened import Opened


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture
def opening(kind, tmp_path, request):
    """Opens stores with a retention of choice, and closes them."""
    opened = []

    def open_store(retention=None):
        address = None
        if kind == "postgresql":
            postgresql = request.getfixturevalue("postgresql")
            address = read_address(postgresql.url(postgresql.new_schema()))
        one = Opened(kind, tmp_path / f"data-{len(opened)}", retention, address)
        opened.append(one)
        return one

    yield open_store
    for one in opened:
        one.close()


@pytest.fixture
def opened(opening):
    return opening()
