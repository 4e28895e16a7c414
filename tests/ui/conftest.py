"""A real browser, driven without one of its driver's own, and servers to look at with it.

A page that logs an error, or loads anything from elsewhere, fails the test that opened it.
"""

import os
import shutil
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import Api, serving
from tests.ui.looking import Looking
from tests.ui.sample import fill

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
SCREENSHOTS = ROOT / "screenshots"


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("not installed: chromium")
        pytest.skip("not installed: chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox needs rights that root in a container has not; only our own pages are opened.
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def api(served):
    client = Api(served)
    yield client
    client.close()


@pytest.fixture(scope="module")
def filled(served):
    """What the pages are looked at with: ids by what is special about the job."""
    client = Api(served)
    ids = fill(client)
    client.close()
    return ids


@pytest.fixture
def http(served, filled):  # noqa: ARG001 - there has to be something to see
    with httpx.Client(base_url=served.url, timeout=120.0) as client:
        yield client


@pytest.fixture
def queue(request) -> str:
    return request.node.name[:200]


@pytest.fixture
def looking(browser, served):
    """A browser's window of its own, without cookies."""
    window = Looking(browser, served.url)
    yield window
    window.close()
