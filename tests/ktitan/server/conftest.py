"""One server for the session, whose model says what it is told to."""

import pytest

from support.echo_model import EchoModel
from support.serving import serving

THINKING = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content if m.content is not none }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "<|end|>\n{% endfor %}<|start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{# models that think also write </think> #}"
)


@pytest.fixture(scope="session")
def echo(rig):
    """A server that echoes; its template opens the reasoning where `enable_thinking` is set."""
    with serving(EchoModel(), rig.byte_tokenizer(THINKING), chunk_tokens=64, heartbeat_seconds=0.05) as client:
        yield client


@pytest.fixture(autouse=True)
def at_rest(request):
    """No test leaves work or a delay behind."""
    yield
    if "echo" in request.fixturenames:
        client = request.getfixturevalue("echo")
        client.model.delay, client.model.fault = 0.0, None
        client.wait_idle()
