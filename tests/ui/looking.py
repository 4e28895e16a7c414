"""Looking at pages as a person does, and noting what a person would not see: errors."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, expect

SECONDS_MAX = 60.0
expect.set_options(timeout=SECONDS_MAX * 1000)


class Looking:
    """One window."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.errors: list[str] = []
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(SECONDS_MAX * 1000)
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._see)
        self.forgiven: Callable[[str], bool] = lambda _: False

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _see(self, request: Any) -> None:
        asked = urlsplit(request.url)
        if asked.scheme in ("http", "https") and asked.netloc != urlsplit(self.url).netloc:
            self.errors.append(f"loaded from elsewhere: {request.url}")

    def at(self, path: str, status: int = 200) -> Page:
        """The page at a path below /ui/."""
        answer = self.page.goto(f"/ui/{path}")
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status}"
        return self.page

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def live(self) -> None:
        """Wait until the page hears of changes."""
        expect(self.page.locator("#live")).to_have_attribute("data-now", "live")

    def close(self) -> None:
        self.context.close()
        left = [error for error in self.errors if not self.forgiven(error)]
        assert not left, left
