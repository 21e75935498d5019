"""A server whose answers are known beforehand: its clients get these texts, in one piece or in many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import Server
from .scripted import ANSWERS


def test_clients_are_answered_as_the_script_says(start: Callable[..., Server]) -> None:
    server = start(program=[str(Path(__file__).with_name("scripted.py"))])
    client = server.client()
    for word, answer in ANSWERS.items():
        asked = [{"role": "user", "content": f"Tell me of the {word}."}]
        whole = client.chat.completions.create(model="built-in", messages=asked)  # type: ignore[arg-type]
        answer = answer.replace("<|user|>", "")  # a special token of this model, which no text shows
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (answer, "stop")
        parts = client.chat.completions.create(model="built-in", messages=asked, stream=True)  # type: ignore[call-overload]
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == answer
    stopped = client.completions.create(model="built-in", prompt="count", max_tokens=50, stop=" four")
    assert stopped.choices[0].text == "one two three"
    assert server.stop() == 0
