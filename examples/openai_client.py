"""Talk to a running server with OpenAI's client.

ktitan -m MODEL --serve --port 8080                     # in another terminal
pip install openai; python examples/openai_client.py [URL] [PROMPT]
"""

import sys

from openai import OpenAI


def main(url: str = "http://localhost:8080/v1", prompt: str = "用一句话解释什么是缓存。") -> None:
    # A server on this machine asks for no key, but the client wants to send one.
    client = OpenAI(base_url=url, api_key="none")
    stream = client.chat.completions.create(
        model="titan",
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=64,
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()
    if usage is not None:
        print(f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} out", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:3])
