"""A browser: one page at a time, driven step by step, and what is seen of it.

Uses Chromium as the system has it. Nothing waits by evaluating strings, which a page's policy forbids.
"""

from __future__ import annotations

import shutil
from typing import Any

from playwright.sync_api import Locator, Page, Playwright, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 30_000


class _Open:
    """The one page, and what came to be heard of it."""

    playwright: Playwright | None = None
    browser: Any = None
    page: Page | None = None
    complaints: list[str]
    requests: list[dict[str, Any]]


_OPEN = _Open()


def browse(
    url: str, width: int = 1440, height: int = 900, dark: bool = False, storage: dict[str, str] | None = None
) -> None:
    """Another page, in a browser that remembers nothing."""
    if _OPEN.browser is None:
        program = next(filter(None, map(shutil.which, BROWSERS)))
        _OPEN.playwright = sync_playwright().start()
        _OPEN.browser = _OPEN.playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    if _OPEN.page is not None:
        _OPEN.page.context.close()
    context = _OPEN.browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    _OPEN.page, _OPEN.complaints, _OPEN.requests = page, [], []
    page.on("console", lambda said: _OPEN.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: _OPEN.complaints.append(str(error)))
    page.on(
        "request", lambda one: _OPEN.requests.append({"url": one.url, "headers": one.headers, "body": one.post_data})
    )
    page.goto(url)


def fill(selector: str, text: str) -> None:
    _find(selector).fill(text)


def press(selector: str, key: str) -> None:
    _find(selector).press(key)


def click(selector: str) -> None:
    _find(selector).click()


def hover(selector: str) -> None:
    _find(selector).hover()


def choose(selector: str, value: str) -> None:
    _find(selector).select_option(value)


def wait(selector: str, count: int = 1, enabled: bool = False, text: str | None = None) -> None:
    """Until there are so many, one that can be used, or one that says so."""
    found = _page().locator(selector)
    if enabled:
        expect(found.first).to_be_enabled()
    elif text is not None:
        expect(found.first).to_contain_text(text)
    else:
        expect(found).to_have_count(count)


def texts(selector: str) -> list[str]:
    """Return the shown text of each."""
    return _page().locator(selector).all_inner_texts()


def contents(selector: str) -> list[str]:
    """The text of each, seen or not."""
    return _page().locator(selector).all_text_contents()


def attributes(selector: str, name: str) -> list[str | None]:
    return [one.get_attribute(name) for one in _page().locator(selector).all()]


def styles(selector: str, name: str) -> list[str]:
    """Computed, of each."""
    return [one.evaluate("(it, name) => getComputedStyle(it)[name]", name) for one in _page().locator(selector).all()]


def visible(selector: str) -> list[bool]:
    return [one.is_visible() for one in _page().locator(selector).all()]


def focused() -> dict[str, str]:
    seen = "({ id, tagName: tag, textContent: text }) => ({ id, tag, text })"
    result: dict[str, str] = _page().evaluate(f"() => ({seen})(document.activeElement)")
    return result


def keys(pressed: list[str]) -> None:
    for key in pressed:
        _page().keyboard.press(key)


def clipboard() -> str:
    result: str = _page().evaluate("() => navigator.clipboard.readText()")
    return result


def stored() -> dict[str, str]:
    result: dict[str, str] = _page().evaluate("() => ({...sessionStorage, ...localStorage, cookie: document.cookie})")
    return result


def widths() -> dict[str, int]:
    """Return the sizes of the screen, and of what is on it."""
    result: dict[str, int] = _page().evaluate(
        "() => ({screen: document.documentElement.clientWidth, content: document.documentElement.scrollWidth})"
    )
    return result


def title() -> str:
    return _page().title()


def heard() -> dict[str, Any]:
    """Errors and warnings of the page, and what it asked for."""
    return {"complaints": _OPEN.complaints, "requests": _OPEN.requests}


def forget() -> None:
    """Forget complaints that were expected."""
    _OPEN.complaints.clear()


def screenshot(path: str) -> None:
    _page().screenshot(path=path)


def _find(selector: str) -> Locator:
    return _page().locator(selector).first


def _page() -> Page:
    assert _OPEN.page is not None, "browse first"
    return _OPEN.page
