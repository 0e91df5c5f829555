"""A browser, and the page in it before a server with scripted answers; all is skipped where there is no browser."""

import shutil

import pytest

from ktitan.server.page_files import HEADERS, PAGE

from support.page_stand_in import StandIn, serve, tiers

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SWITCHES = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(scope="package")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def server():
    stand_in = StandIn(PAGE, HEADERS)
    stand_in.tiers = tiers(ram=4 * 2**30)
    with serve(stand_in) as stand_in.url:
        yield stand_in


@pytest.fixture(scope="package")
def watched(browser):
    """One page for most tests: each has a server at a port of its own, and so an empty storage."""
    from support.pages import Watched

    watched = Watched(browser)
    yield watched
    watched.context.close()


@pytest.fixture
def page(watched, server):
    yield watched.visit(server.url)
    watched.check(server.url)


@pytest.fixture
def make_page(browser, server):
    """Open the page with options of a browser context."""
    from support.pages import Watched

    made = []

    def make(**options):
        made.append(Watched(browser, **options))
        return made[-1].visit(server.url)

    yield make
    for one in made:
        one.check(server.url)
        one.context.close()


@pytest.fixture(scope="package")
def markdown_page(browser):
    """One page for the tests that only draw markdown in it."""
    with serve(StandIn(PAGE, HEADERS)) as url:
        context = browser.new_context(locale="en-US")
        page = context.new_page()
        page.goto(url)
        yield page
        context.close()
