"""Continue's adapters: what the editor extension asks with, for chat and for suggestions while one types."""

from __future__ import annotations

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, plain_chat
from .clients import ForeignClient

pytestmark = pytest.mark.foreign
CLIENT = "continue_dev"
GAP = {"model": "filler", "max_tokens": 64, "temperature": 0.01}
MIDDLE = "first\nsecond"
# As Continue writes it for a model whose name has "qwen" and "coder".
PROMPT = "<|fim_prefix|>import gap<|fim_suffix|>\nreturn<|fim_middle|>"
STOPS = [
    *("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
    *("<|file_sep|>", "<|im_start|>", "<|im_end|>"),
]


@pytest.mark.parametrize("provider", ["openai", "vllm", "mistral", "llama.cpp"])
def test_a_gap_is_filled_by_each_provider(filler: ForeignClient, provider: str) -> None:
    assert filler.call("fill", provider=provider, prompt="import gap", suffix="\nreturn", **GAP) == MIDDLE
    assert filler.call("complete", provider=provider, prompt=PROMPT, stop=STOPS, **GAP) == MIDDLE
    assert filler.call("models", provider=provider) == ["filler"]


def test_chat_is_what_it_is_over_plain_http(client: ForeignClient, foreign_server: Server) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}
    assert client.call("chat", provider="vllm", **asked) == plain_chat(foreign_server)
