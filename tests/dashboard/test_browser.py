"""One journey through the application in a real browser: every page by its link, in light and dark, wide and narrow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from dashboard.app_parts.page import PAGES
from dashboard.serve import served
from dashboard.settings import DashboardSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CHROMIUM = Path(os.environ.get("TRIMTAB_CHROMIUM", "/usr/bin/chromium"))
_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"]
_PATIENCE_MS = 120_000


def _missing(reason: str) -> None:
    if os.environ.get("TRIMTAB_REQUIRE_BROWSER") == "1":
        pytest.fail(f"TRIMTAB_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def address(app_world: Path) -> Iterator[str]:
    with served(DashboardSettings(port=0), app_world) as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_spec("playwright") is None:
        _missing("playwright is not installed")
    if not CHROMIUM.exists():
        _missing(f"there is no Chromium at {CHROMIUM} (set TRIMTAB_CHROMIUM)")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=_ARGUMENTS)
        yield chromium
        chromium.close()


def _settled(page: Page) -> None:
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=_PATIENCE_MS)


def _visit(page: Page, title: str) -> None:
    page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()
    page.get_by_role("heading", name=title, exact=True, level=1).wait_for(timeout=_PATIENCE_MS)
    _settled(page)


def test_a_walk_through_all_pages_raises_no_error(browser: Browser, address: str) -> None:
    problems: list[str] = []
    outside: list[str] = []
    with browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme="light") as context:
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else outside.append(r.url))
        page.goto(address)
        _settled(page)
        page.get_by_text("simulated").first.wait_for(timeout=_PATIENCE_MS)
        for name in [*PAGES, "fleet"]:
            _visit(page, name.capitalize())
            assert page.get_by_test_id("stException").count() == 0
        page.locator(".st-key-ledger canvas").first.wait_for(timeout=_PATIENCE_MS)
        page.locator(".st-key-heat .plotly").first.wait_for(timeout=_PATIENCE_MS)
        page.locator(".st-key-status").get_by_role("link").first.click()
        page.wait_for_url(lambda url: url.rstrip("/") != address, timeout=_PATIENCE_MS)
        _settled(page)
        assert page.get_by_test_id("stException").count() == 0
    assert problems == []
    assert outside == []  # nothing is loaded from elsewhere, nothing is sent elsewhere


def test_a_change_of_the_range_redraws_the_page(browser: Browser, address: str) -> None:
    with browser.new_context(viewport={"width": 1440, "height": 1000}) as context:
        page = context.new_page()
        page.goto(address)
        _settled(page)
        page.get_by_role("radio", name="1 h", exact=True).click()
        page.get_by_text(re.compile(r"00:3\d to Mon 5 Jan")).first.wait_for(timeout=_PATIENCE_MS)
        _visit(page, "Slices")
        page.get_by_text(re.compile(r"00:3\d to Mon 5 Jan")).first.wait_for(timeout=_PATIENCE_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser: Browser, address: str, scheme: str) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(address)
        _settled(page)
        page.get_by_text("Who lies where, now").wait_for(timeout=_PATIENCE_MS)
        _settled(page)
        main = page.get_by_test_id("stMain")
        assert main.evaluate("e => e.scrollWidth - e.clientWidth") <= 1
        ground = page.get_by_test_id("stApp").evaluate("e => getComputedStyle(e).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


def test_a_page_elsewhere_gets_no_answer_under_this_address(address: str) -> None:
    port = address.rsplit(":", 1)[1]
    headers = {
        "Host": f"evil.example:{port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    assert requests.get(f"{address}/_stcore/stream", headers=headers, timeout=10).status_code == 403
