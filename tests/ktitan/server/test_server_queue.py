"""The queue in front of the one stream: turns, bound, and what is told to who must come back."""

import asyncio
import threading

import pytest

from ktitan.server.queue import FairQueue

from support.echo_model import EchoModel
from support.serving import serving, wait_for


def order_of(*arrivals):
    """The order in which (client, item) arrivals come out."""

    async def run():
        queue = FairQueue(99)
        for client, item in arrivals:
            queue.put(client, item)
        ahead = [queue.ahead(client, item) for client, item in arrivals]
        out = [await queue.get() for _ in arrivals]
        assert [out.index(item) for _, item in arrivals] == ahead
        assert len(queue) == 0
        return out

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [
        ("a1 a2 a3", "a1 a2 a3"),
        ("a1 a2 a3 b1", "a1 b1 a2 a3"),
        ("a1 b1 b2 a2 c1 a3", "a1 b1 c1 a2 b2 a3"),
    ],
)
def test_clients_take_turns_and_each_keeps_its_order(arrivals, order):
    assert order_of(*((one[0], one) for one in arrivals.split())) == order.split()


def test_get_waits_and_remove_forgets():
    async def run():
        queue = FairQueue(9)
        waiting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.put("a", 1)
        assert await waiting == 1
        queue.put("a", 2)
        queue.put("b", 3)
        assert queue.remove("a", 2)
        assert not queue.remove("a", 2)
        assert not queue.remove("c", 3)
        assert queue.drain() == [3]
        assert len(queue) == 0

    asyncio.run(run())


def test_a_full_queue_says_when_to_come_back(rig):
    model = EchoModel()
    model.delay = 0.02
    with serving(model, rig.byte_tokenizer(), queue_limit=2) as client:
        sockets = [client.open(client.chat_body("ab", max_tokens=900, ignore_eos=True)) for _ in range(3)]
        wait_for(lambda: len(client.service.engine.queue) == 2)
        refused = client.chat("x")
        assert (refused.status, refused.json["error"]["type"]) == (429, "rate_limit_error")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert client.request("POST", "/v1/chat/completions", client.chat_body("x", stream=True)).status == 429
        assert client.get("/tiers").json["queue"] == {"waiting": 2, "running": 1, "limit": 2}
        for raw in sockets:
            raw.close()
        model.delay = 0
        client.wait_idle()
        assert client.chat("x").status == 200


def test_without_a_queue_one_request_is_served_at_a_time(rig):
    model = EchoModel()
    with serving(model, rig.byte_tokenizer(), queue_limit=0) as client:
        assert client.chat("x").status == 200
        model.delay = 0.02
        raw = client.open(client.chat_body("ab", max_tokens=900, ignore_eos=True))
        wait_for(lambda: client.service.engine.running is not None)
        assert client.chat("x").status == 429
        raw.close()


def test_answers_are_not_mixed_up(echo):
    texts = [f"text {number} " * (number % 5 + 1) for number in range(16)]
    answers = {}

    def ask(text):
        answers[text] = echo.chat(text).json["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {text: text for text in texts}
