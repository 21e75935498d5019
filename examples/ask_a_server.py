"""OpenAI's client against a server: a stream, and beside it background work that gives way to it.

Needs `inflight serve` in another terminal, and `pip install openai`. Call: `python examples/ask_a_server.py URL`
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

QUESTIONS = ("What is a KV block?", "What is preemption?", "What is chunked prefill?", "What is a batch?")


def background(client: OpenAI, question: str) -> str:
    """In the batch lane, which has what others leave; `timings` says where the request's time went."""
    answer = client.chat.completions.create(
        model="built-in",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        service_tier="flex",
        extra_body={"timings": True},
    )
    timings = (answer.model_extra or {})["timings"]
    text = answer.choices[0].message.content or ""
    return f"{question} {text[:60]}… ({timings['queue_ms']:.0f} ms in the queue, {timings['total_ms']:.0f} ms in all)"


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    with ThreadPoolExecutor() as pool:
        beside = [pool.submit(background, client, question) for question in QUESTIONS]
        stream = client.chat.completions.create(
            model="built-in",
            messages=[{"role": "user", "content": "What is continuous batching?"}],
            temperature=0,
            stream=True,
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
        for one in beside:
            print(one.result())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
