"""What the browser keeps: conversations, settings, half an answer."""

import json
import threading

import pytest

pages = pytest.importorskip("support.pages")
pytestmark = pytest.mark.browser


def test_reload_keeps_conversations_also_in_mid_answer(page, server):
    pages.ask_and_wait(page, "kept")
    server.script = ["**partial** text", ("wait", threading.Event())]
    pages.ask(page, "cut")
    pages.says(pages.answers(page).last, "partial text")
    page.reload()
    pages.says(pages.answers(page).last, "partial text")
    pages.says(page.locator(".facts").last, "interrupted")
    assert page.locator(".bubble").all_inner_texts() == ["kept", "cut"]
    server.script = ["whole"]
    page.get_by_role("button", name="Regenerate").click()
    pages.says(pages.answers(page).last, "whole")


def test_conversations_are_searched_renamed_exported_and_deleted(page, server):
    for text in ("apples", "pears"):
        server.script = [f"about {text}"]
        pages.ask_and_wait(page, text)
        page.keyboard.press("Control+k")
        pages.expect(page.locator(".message")).to_have_count(0)
    titles = page.locator("#list .title")
    assert titles.all_inner_texts() == ["pears", "apples"]
    page.fill("#search", "about APP")
    pages.expect(titles).to_have_text(["apples"])
    row = page.locator("#list li")
    row.hover()
    row.get_by_role("button", name="Rename").click()
    page.fill("#dialog-field", "<img src=x onerror=hit()>")
    page.keyboard.press("Enter")
    pages.expect(titles).to_have_text(["<img src=x onerror=hit()>"])
    with page.expect_download() as download:
        page.click("#export-all")
    saved = json.loads(download.value.path().read_text("utf-8"))["conversations"]
    assert {one["title"]: one["messages"][1]["content"] for one in saved} == {
        "pears": "about pears",
        "<img src=x onerror=hit()>": "about apples",
    }
    row.hover()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete").last.click()
    page.fill("#search", "")
    pages.expect(titles).to_have_text(["pears"])
    page.reload()
    pages.expect(titles).to_have_text(["pears"])


def test_settings_are_sent_and_empty_ones_are_not(page, server):
    page.fill("#set-system", "Be brief.")
    page.fill("#set-temperature", "0.25")
    page.fill("#set-top_k", "40")
    page.fill("#set-top_p", "7")
    pages.says(page.locator("#set-fault"), "Top-p must be 0")
    pages.ask_and_wait(page, "Q")
    request = server.request()
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert set(request) == {"model", "messages", "stream", "stream_options", "temperature", "top_k"}
    assert (request["temperature"], request["top_k"]) == (0.25, 40)
    page.reload()
    assert page.input_value("#set-temperature") == "0.25"


def test_another_tab_sees_the_conversation(page, server):
    pages.ask_and_wait(page, "from the first tab")
    other = page.context.new_page()
    other.goto(page.url)
    pages.says(other.locator(".bubble"), "from the first tab")
    server.script = ["second answer"]
    pages.ask_and_wait(page, "again")
    pages.says(pages.answers(other).last, "second answer")
    other.close()


def test_two_conversations_are_answered_side_by_side(page, server):
    more = threading.Event()
    server.script = ["slow one", ("wait", more), " ends"]
    pages.ask(page, "first")
    pages.says(pages.answers(page), "slow one")
    page.keyboard.press("Control+k")
    server.script = ["quick"]
    pages.ask_and_wait(page, "second")
    page.get_by_role("button", name="first", exact=True).click()
    pages.says(pages.answers(page), "slow one")
    assert page.get_attribute("#send", "aria-label") == "Stop"
    more.set()
    pages.says(pages.answers(page), "slow one ends")
    assert page.get_by_role("button", name="first", exact=True).get_attribute("aria-current") == "true"


@pytest.mark.parametrize("kept", ["{bad", "null"])
def test_settings_that_cannot_be_read_do_not_stop_the_page(page, kept):
    page.evaluate("kept => localStorage.setItem('ktitan.settings', kept)", kept)
    page.reload()
    page.wait_for_selector("html[data-ready]")
