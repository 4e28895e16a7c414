"""The login page in a real browser: who comes in, what it is shown, and how it leaves."""

import pytest
from playwright.sync_api import expect

from tests.e2e.serving import run, serving
from tests.ui.looking import Looking

PASSWORD = "open-the-pages-please"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    file = str(folder / "access.toml")
    for name, role in (("ada", "operate"), ("wall", "read"), ("hand", "work")):
        made = run(
            *("access", "new", name, "--role", role, "--password", "--file", file),
            input=f"{PASSWORD}-{name}\n",
        )
        assert made.returncode == 0, made.stderr
    with serving(folder, "--store", "memory", "--access", file) as server:
        yield server


@pytest.fixture
def window(browser, guarded):
    window = Looking(browser, guarded.url)
    yield window
    window.close()


def log_in(page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Token or password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_browser_logs_in_comes_back_to_its_page_and_logs_out(window):
    page = window.page
    page.goto(f"{window.url}/ui/queues")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()

    log_in(page, "ada", f"{PASSWORD}-ada")

    expect(page).to_have_url(f"{window.url}/ui/queues")
    expect(page.get_by_text("ada")).to_be_visible()
    window.live()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto(f"{window.url}/ui/jobs")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_script_cannot_read_the_session_of_a_browser(window):
    page = window.page
    page.goto(f"{window.url}/ui/queues")
    log_in(page, "wall", f"{PASSWORD}-wall")
    expect(page).to_have_url(f"{window.url}/ui/queues")

    (cookie,) = [each for each in page.context.cookies() if "session" in each["name"]]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["value"] not in page.evaluate("document.cookie")
    assert cookie["value"] not in page.content()


def test_a_wrong_password_is_said_on_the_page_and_can_be_mended(window):
    window.forgiven = lambda error: "403" in error
    page = window.page
    page.goto(f"{window.url}/ui/queues")
    log_in(page, "wall", "something-else")
    expect(page.get_by_role("alert")).to_have_text("These credentials are unknown, or expired.")

    log_in(page, "wall", f"{PASSWORD}-wall")

    expect(page).to_have_url(f"{window.url}/ui/queues")


def test_whoever_may_not_look_is_told_what_is_missing(window):
    window.forgiven = lambda error: "403" in error
    page = window.page
    page.goto(f"{window.url}/ui/queues")
    log_in(page, "hand", f"{PASSWORD}-hand")

    expect(
        page.get_by_text("hand has the role work; this needs the role read or operate")
    ).to_be_visible()
