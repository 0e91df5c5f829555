"""Asking and answering in the page."""

import threading

import pytest

pages = pytest.importorskip("support.pages")
pytestmark = pytest.mark.browser


def test_typing_streams_an_answer(page, server):
    more = threading.Event()
    server.script = [("reasoning", "Hm. "), "# A **title**\n\nfirst ", ("wait", more), "second\n\n- one\n- two\n"]
    pages.ask(page, "What is 1 < 2?")
    pages.says(pages.answers(page), "first")
    assert "second" not in pages.answers(page).inner_text()
    assert page.get_attribute("#send", "aria-label") == "Stop"
    more.set()
    pages.idle(page)
    assert page.locator(".text h3 strong").inner_text() == "title"
    assert page.locator(".text li").all_inner_texts() == ["one", "two"]
    assert page.locator(".bubble").inner_text() == "What is 1 < 2?"
    pages.says(page.locator("#status"), "complete")
    request = server.request()
    assert request["messages"] == [{"role": "user", "content": "What is 1 < 2?"}]
    assert request["model"] == "default" and request["stream"] and request["stream_options"] == {"include_usage": True}
    assert page.locator("#prompt-tokens").inner_text() == "7 tokens"
    reasoning = page.locator("details.reasoning")
    assert reasoning.get_attribute("open") is None
    reasoning.locator("summary").click()
    pages.says(reasoning, "Hm.")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_keeps_what_came_and_ends_the_servers_work(page, server, how):
    server.script = ["half an answer", ("wait", threading.Event()), "never"]
    pages.ask(page, "Q")
    pages.says(pages.answers(page), "half an answer")
    if how == "button":
        page.click("#send")
    else:
        page.keyboard.press("Escape")
    pages.idle(page)
    assert pages.answers(page).inner_text() == "half an answer"
    pages.says(page.locator(".facts"), "stopped")
    assert server.vanished.get(timeout=5)["messages"][0]["content"] == "Q"


def test_regenerate_asks_the_same_anew(page, server):
    server.script = ["one"]
    pages.ask_and_wait(page, "Q")
    server.script = ["two"]
    page.get_by_role("button", name="Regenerate").click()
    pages.says(pages.answers(page), "two")
    pages.idle(page)
    assert pages.answers(page).all_inner_texts() == ["two"]
    assert server.questions[0] == server.questions[1]


def test_up_arrow_edits_the_last_question(page, server):
    pages.ask_and_wait(page, "first")
    pages.ask_and_wait(page, "wrnog")
    page.press("#question", "ArrowUp")
    assert page.input_value("#question") == "wrnog" and page.is_visible("#editing")
    page.keyboard.press("Escape")
    assert page.input_value("#question") == "" and not page.is_visible("#editing")
    page.get_by_role("button", name="Edit", exact=True).last.click()
    pages.ask_and_wait(page, "right")
    assert page.locator(".bubble").all_inner_texts() == ["first", "right"]
    assert [message["content"] for message in server.request()["messages"]] == ["first", "Hello.", "right"]


def test_composing_chinese_does_not_send(page, server):
    page.focus("#question")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    for options in ("isComposing: true, keyCode: 13", "isComposing: false, keyCode: 229"):
        event = f'new KeyboardEvent("keydown", {{ key: "Enter", bubbles: true, cancelable: true, {options} }})'
        assert page.evaluate(f'document.getElementById("question").dispatchEvent({event})')  # nobody has prevented it
    devtools.send("Input.insertText", {"text": "你好"})
    assert page.input_value("#question") == "你好" and server.questions == []
    page.press("#question", "Shift+Enter")
    assert page.input_value("#question") == "你好\n"
    page.press("#question", "Enter")
    pages.idle(page)
    assert server.request()["messages"][0]["content"] == "你好\n"


@pytest.mark.parametrize("secure", [True, False])
def test_answers_and_code_are_copied(make_page, server, secure):
    page = make_page(permissions=["clipboard-read", "clipboard-write"])
    if not secure:  # plain http in a home network has no clipboard interface
        page.evaluate("() => { navigator.clipboard.writeText = undefined; }")
    server.script = ["Run **this**:\n\n```sh\nls -l\n  pwd\n```\n"]
    pages.ask_and_wait(page, "Q")
    page.locator(".copy-code").click()
    pages.says(page.locator(".copy-code"), "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "ls -l\n  pwd"
    page.locator(".answer").get_by_role("button", name="Copy", exact=True).last.click()
    pages.says(page.locator("#status"), "Copied")
    page.wait_for_function("async (text) => (await navigator.clipboard.readText()) === text", arg=server.script[0])
