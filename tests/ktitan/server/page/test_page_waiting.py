"""Waiting and failing are told in sentences."""

import threading

import pytest

from support.page_stand_in import MODEL

pages = pytest.importorskip("support.pages")
pytestmark = pytest.mark.browser


def test_a_key_is_asked_for_and_forgotten_with_the_tab(make_page, server):
    server.key = "right"
    page = make_page()
    page.fill("#dialog-field", "wrong")
    page.keyboard.press("Enter")
    pages.says(page.locator("dialog"), "did not accept")
    page.fill("#dialog-field", "right")
    page.keyboard.press("Enter")
    pages.says(page.locator("#model"), MODEL)
    pages.ask_and_wait(page, "Q")
    assert pages.answers(page).inner_text() == "Hello."
    assert page.evaluate("[sessionStorage['ktitan.key'], localStorage['ktitan.key']]") == ["right", None]
    server.key = "changed"
    pages.ask(page, "R")
    page.fill("#dialog-field", "changed")
    page.keyboard.press("Enter")
    pages.says(pages.answers(page).last, "Hello.")


def test_a_key_that_no_header_can_carry_is_asked_for_again(make_page, server):
    server.key = "right"
    page = make_page()
    page.fill("#dialog-field", "ключ")
    page.keyboard.press("Enter")
    pages.says(page.locator("dialog"), "did not accept")
    page.fill("#dialog-field", "right")
    page.keyboard.press("Enter")
    pages.says(page.locator("#model"), MODEL)


def test_a_busy_server_is_asked_again_when_it_said(page, server):
    server.refusals = [(429, "queue is full", {"Retry-After": "2"})]
    pages.ask(page, "Q")
    pages.says(page.locator(".note"), "Trying again in 2 s")
    pages.says(page.locator(".note"), "Trying again in 1 s")
    pages.says(pages.answers(page), "Hello.")
    assert len(server.questions) == 2


def test_failures_are_sentences(page, server):
    server.refusals = [(400, "temperature: must be at most 2", {})]
    pages.ask_and_wait(page, "Q")
    pages.says(page.locator(".note"), "The server refused the request: temperature: must be at most 2")
    server.script = ["part", ("error", "out of memory")]
    page.get_by_role("button", name="Try again").click()
    pages.says(page.locator(".note"), "The server failed: out of memory")
    server.script = ["lost part", ("break",)]
    page.get_by_role("button", name="Try again").click()
    pages.says(page.locator(".note"), "The connection was lost")
    assert pages.answers(page).inner_text() == "lost part"
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.get_by_role("button", name="Try again").click()
    pages.says(page.locator(".note"), "cannot be reached")
    page.unroute("**/v1/chat/completions")
    server.script = ["fine"]
    page.get_by_role("button", name="Try again").click()
    pages.says(pages.answers(page), "fine")
    assert [len(request["messages"]) for request in server.questions] == [1, 1, 1, 1]


def test_heartbeats_tell_what_is_waited_for(page, server):
    first, second = threading.Event(), threading.Event()
    server.script = [
        ("comment", "queued behind 3"),
        ("wait", first),
        ("comment", "prefill 2048/8000"),
        ("wait", second),
        "x",
    ]
    pages.ask(page, "Q")
    pages.says(page.locator(".note"), "In the queue: 3 ahead")
    first.set()
    pages.says(page.locator(".note"), "Reading the prompt: 2048 of 8000 tokens")
    assert page.evaluate("document.querySelector('.note progress').value") == 2048
    pages.says(page.locator("#prompt-tokens"), "2048 of 8000 tokens")
    second.set()
    pages.idle(page)
    assert not page.is_visible(".note")
