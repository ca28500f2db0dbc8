"""The report in a real browser: nothing is fetched, nothing runs, and no screen scrolls sideways."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dashboard.report.html import render_html
from dashboard.report.page import make_page
from tests.dashboard.report_model import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Of every chart: how far its shapes reach beyond its own frame, in pixels.
BEYOND = """() => Math.max(...[...document.querySelectorAll('svg.chart')].map(svg => {
  const frame = svg.getBoundingClientRect();
  const shapes = [...svg.querySelectorAll('rect, text, polygon, polyline')].map(s => s.getBoundingClientRect());
  return Math.max(0, ...shapes.map(s => Math.max(frame.left - s.left, s.right - frame.right)));
}))"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_and_fetches_nothing(tmp_path: Path, width: int, scheme: Any) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  only where there is a browser

    path = tmp_path / "report.html"
    path.write_text(render_html(make_page(report())), encoding="utf-8")
    asked: list[str] = []
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(path.as_uri())
        across = page.evaluate("document.documentElement.scrollWidth")
        beyond = page.evaluate(BEYOND)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert asked == [path.as_uri()]
    assert said == []
    assert across == width
    assert beyond <= 3
    assert ground == ("rgb(244, 246, 248)" if scheme == "light" else "rgb(14, 19, 26)")
