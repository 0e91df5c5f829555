"""The page before the real server, whose model says what it is told to."""

import pytest

pages = pytest.importorskip("support.pages")
pytestmark = pytest.mark.browser


@pytest.fixture
def page(watched, echo):
    yield watched.visit(echo.url)
    watched.check(echo.url)


def test_the_page_and_the_server_understand_each_other(page, echo):
    headers = echo.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"] and "no-cache" in headers["cache-control"]
    pages.says(page.locator("#model"), "tiny-echo")
    pages.says(page.locator("#queue"), "0 running, 0 waiting")
    page.fill("#set-temperature", "0")
    pages.ask_and_wait(page, "**这是重点。**下文")
    assert page.locator(".text strong").inner_text() == "这是重点。"
    pages.says(page.locator(".facts"), "25 tokens")
    echo.model.delay = 0.02
    pages.ask(page, "word " * 200)
    pages.says(page.locator(".note").last, "Reading the prompt")
    pages.says(pages.answers(page).last, "word word")
    page.keyboard.press("Escape")
    pages.idle(page)
    echo.wait_idle()
    pages.says(page.locator(".facts").last, "stopped")


def test_the_servers_refusal_is_shown(page, echo):
    pages.ask_and_wait(page, "x" * 6000)
    pages.says(page.locator(".note"), "The server refused the request")
    pages.says(page.locator(".note"), "4096")
