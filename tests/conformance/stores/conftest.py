import pytest

from tests.conformance.stores.opened import Opened


@pytest.fixture(params=["memory", "sqlite"])
def kind(request):
    return request.param


@pytest.fixture
def opening(kind, tmp_path):
    """Opens stores with a retention of choice, and closes them."""
    opened = []

    def open_store(retention=None):
        one = Opened(kind, tmp_path / f"data-{len(opened)}", retention)
        opened.append(one)
        return one

    yield open_store
    for one in opened:
        one.close()


@pytest.fixture
def opened(opening):
    return opening()
