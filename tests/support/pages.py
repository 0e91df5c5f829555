"""What tests of the page do in a browser."""

from playwright.sync_api import expect

NONE = "\N{EN DASH}"  # what the page says of a figure that there is none of


class Watched:
    """A page whose requests and faults are noted."""

    def __init__(self, browser, **options):
        settings = {"viewport": {"width": 1300, "height": 800}, "locale": "en-US", **options}
        self.context = browser.new_context(**settings)
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.asked, self.faults = [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if "Security" in line.text else None)

    def visit(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("#question:focus, dialog[open]")
        return self.page

    def check(self, url):
        """Everything was asked of the page's own server, and no script failed or was stopped; leaves the page."""
        self.page.goto("about:blank")
        asked, self.asked = self.asked, []
        faults, self.faults = self.faults, []
        assert asked and [one for one in asked if not one.startswith((url, f"blob:{url}", "about:blank"))] == []
        assert faults == []


def ask(page, text):
    page.fill("#question", text)
    page.press("#question", "Enter")


def ask_and_wait(page, text):
    ask(page, text)
    idle(page)


def idle(page):
    page.wait_for_selector(".answer[aria-busy=false] >> nth=-1")
    page.wait_for_selector("#send:not(.running)")


def answers(page):
    return page.locator(".answer .text")


def says(locator, text):
    expect(locator).to_contain_text(text, timeout=8000)


def draw(page, *texts, whole=True):
    """The HTML of an answer drawn from growing texts, and of the last of them drawn at once."""
    return page.evaluate(
        """async ([texts, whole]) => {
          const { MarkdownView } = await import("/markdown.js");
          const [grown, once] = [document.createElement("div"), document.createElement("div")];
          const view = new MarkdownView(grown);
          for (const text of texts) view.update(text, true);
          view.update(texts.at(-1), !whole);
          new MarkdownView(once).update(texts.at(-1), !whole);
          return [grown.innerHTML, once.innerHTML];
        }""",
        [list(texts), whole],
    )
