"""Widths, themes, languages and the live panel."""

import re

import pytest

from ktitan.server.page_files import PAGE

from support.page_stand_in import MODEL, streaming, tiers

pages = pytest.importorskip("support.pages")
pytestmark = pytest.mark.browser


def test_a_phone_has_no_sideways_scroll(make_page, server):
    page = make_page(viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    row = "| " + " | ".join(["a long cell of text"] * 8) + " |"
    server.script = [f"{'x' * 200}\n\n```\n{'y ' * 200}\n```\n\n{row}\n{'|---' * 8}|\n{row}\n\nhttp://e.f/{'z' * 200}"]
    pages.ask_and_wait(page, "w" * 200)
    for name in ("side", "panel"):
        assert page.evaluate(
            "[document.documentElement.scrollWidth, document.getElementById('scroll').scrollWidth]"
        ) == [360, 360]
        page.click(f"#toggle-{name}")
        assert page.is_visible(f"#{name}") and page.evaluate("document.getElementById('main').inert")
        page.click(f"#close-{name}")
        assert not page.is_visible(f"#{name}")


def test_themes(make_page):
    page = make_page(color_scheme="dark")
    paint = "getComputedStyle(document.body).color"
    dark = page.evaluate(paint)
    page.select_option("#theme", "light")
    light = page.evaluate(paint)
    assert light != dark
    page.reload()
    assert page.evaluate(paint) == light
    page.select_option("#theme", "auto")
    assert page.evaluate(paint) == dark


def test_nothing_jumps_while_an_answer_comes(page, server):
    observe = """(since) => { window.shift = 0; new PerformanceObserver((list) => {
        for (const one of list.getEntries()) window.shift += one.value;
      }).observe({ type: "layout-shift", buffered: since }); }"""
    page.evaluate(observe, True)
    page.wait_for_timeout(100)
    assert page.evaluate("window.shift") < 0.01  # while it loaded
    page.evaluate(observe, False)
    text = "## Title\n\nSome **bold** text.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n```\n\n1. one\n2. two\n"
    server.script = [("comment", "prefill 1/2"), ("reasoning", "hm"), *text]
    pages.ask_and_wait(page, "Q")
    assert page.evaluate("window.shift") < 0.03


def test_the_panel_moves_and_rests_when_hidden(page, server):
    pages.says(page.locator("#tier-ram"), "4.0 GiB of 8.0 GiB")
    assert page.locator("#hits").inner_text() == "nothing is streamed"
    server.tiers = tiers(ram=6 * 2**30, hits=7, misses=1, rate=3 * 2**30)
    pages.says(page.locator("#tier-ram"), "6.0 GiB of 8.0 GiB")
    assert page.get_attribute("#meter-ram", "aria-valuenow") == "75"
    assert (page.locator("#hits").inner_text(), page.locator("#drive").inner_text()) == ("RAM 87.5 %", "3.0 GiB/s")
    page.click("#toggle-panel")
    before = server.polls
    page.wait_for_timeout(2300)
    assert server.polls == before


def test_the_panel_tells_of_streams(page, server):
    names = ("stall", "prefetch", "foreseen", "policy")

    def shown():
        return [page.locator(f"#{name}").inner_text() for name in names]

    pages.says(page.locator("#tier-ram"), "4.0 GiB")
    assert shown() == ["nothing is streamed"] * 4
    server.tiers = tiers(ram=1, streams=streaming())
    pages.says(page.locator("#prefetch"), "off")
    assert shown() == [pages.NONE, "off", pages.NONE, pages.NONE]
    server.tiers = tiers(ram=1, hits=3, misses=1, streams=streaming(0.125, 4, 0.61, "decayed-lfu"))
    pages.says(page.locator("#policy"), "decayed-lfu")
    assert shown()[:3] == ["12.5 % of the time", "on, up to 4 a layer", "61.0 % of misses"]
    page.select_option("#language", "zh")
    assert shown()[0] == "12.5 % 的时间" and "每层至多 4 个" in shown()[1] and shown()[2] == "61.0 % 的未命中"


def test_every_word_has_both_languages(markdown_page):
    faults = markdown_page.evaluate(
        """async () => {
          const { TABLE } = await import("/strings.js");
          const names = (words) => (words.match(/{\\w+}/g) ?? []).sort().join();
          const isWrong = ([, [en, zh, ...more]]) => !en || !zh || more.length || names(en) !== names(zh);
          return Object.entries(TABLE).filter(isWrong);
        }"""
    )
    assert faults == []


def test_every_word_is_used():
    table = (PAGE / "strings.js").read_text("utf-8")
    sources = "".join(
        path.read_text("utf-8")
        for path in PAGE.iterdir()
        if path.suffix in (".js", ".html") and path.name != "strings.js"
    )
    names = re.findall(r"^  (\w+): \[", table, re.MULTILINE)
    made = {*(f"tier_{name}" for name in ("vram", "ram", "nvme")), "token", "tokens", "aboutTokens"}
    used = set(re.findall(r'"(\w+)"|\b(\w+): \[', sources))
    words = {word for pair in used for word in pair}
    assert len(names) > 80 and set(names) - words - made == set()


def test_chinese_by_the_browsers_language_and_by_the_switch(make_page):
    page = make_page(locale="zh-CN")
    pages.says(page.locator("#empty"), "向这台机器提问")
    assert page.get_attribute("html", "lang") == "zh-CN"
    page.select_option("#language", "en")
    pages.says(page.locator("#empty"), f"Answers are computed by {MODEL}")
    page.reload()
    pages.says(page.locator("#empty h2"), "Ask this machine")
