"""From bodies to requests: what is refused before the engine is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight.frontend.prompts import PromptEncoder
from inflight.server.asking import Asker
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.completions import CompletionBody
from inflight.server.errors import ApiError
from inflight.server.tenants import ANYONE
from inflight.text import ChatTemplate, Tokenizer

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


class Cut(Exception):
    """A text was cut into tokens."""


class Uncut(Tokenizer):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise Cut


def asker(kind: type[Tokenizer] = Tokenizer, **limits: Any) -> Asker:
    tokenizer = kind.load(BUILT_IN)
    encoder = PromptEncoder(tokenizer, ChatTemplate.load(BUILT_IN), 0)
    return Asker(encoder=encoder, tokenizer=tokenizer, models=(), now=lambda: 0.0, **limits)


def chat(content: str, **more: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": [{"role": "user", "content": content}], **more})


def completion(prompt: Any, **more: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": prompt, **more})


@pytest.mark.parametrize(
    ("body", "told", "field"),
    [
        (completion("x", n=5), "5 samples, 5 in all, but at most 4", "n"),
        (completion("x", best_of=5), "5 samples, 5 in all, but at most 4", "n"),
        (completion(["x"] * 5), "5 prompts of 1 samples each, 5 in all, but at most 4", "prompt"),
        (completion(["x"] * 3, n=2), "3 prompts of 2 samples each, 6 in all, but at most 4", "prompt"),
        (completion(["x"] * 2, n=5), "2 prompts of 5 samples each, 10 in all, but at most 4", "n"),
        (chat("x", n=5), "5 samples, 5 in all, but at most 4", "n"),
    ],
)
def test_a_call_that_could_never_wait_is_refused_for_good(body: Any, told: str, field: str) -> None:
    ask = asker(most_sequences=4)
    with pytest.raises(ApiError, match=told) as refused:
        ask.chat(body, ANYONE) if isinstance(body, ChatBody) else ask.completion(body, ANYONE)
    assert (refused.value.status, refused.value.param, refused.value.retry_after) == (400, field, None)


def test_a_call_that_fits_the_queue_exactly_passes() -> None:
    call = asker(most_sequences=4).completion(completion(["x", "y"], n=2), ANYONE)
    assert [request.params.n for request in call.requests] == [2, 2]


def test_text_that_certainly_cannot_fit_is_not_cut_into_tokens() -> None:
    ask = asker(Uncut, max_model_len=16)
    longest = Tokenizer.load(BUILT_IN).longest_token
    assert longest is not None
    most = 16 * longest
    for body, field in ((completion(["x", "y" * (most + 1)][1:]), "prompt"), (chat("y" * (most + 1)), "messages")):
        with pytest.raises(ApiError, match=f"16 tokens, and a token stands for at most {longest} characters") as told:
            ask.chat(body, ANYONE) if isinstance(body, ChatBody) else ask.completion(body, ANYONE)
        assert (told.value.status, told.value.param, told.value.code) == (400, field, "context_length_exceeded")
    for text, of in (("y" * most, ask), ("y" * (most + 1), asker(Uncut))):
        with pytest.raises(Cut):  # it might fit, as far as anybody knows here
            of.completion(completion(text), ANYONE)


def test_template_variables_may_have_any_name_but_three() -> None:
    ask = asker()
    plain = ask.chat(chat("x"), ANYONE).requests[0].prompt_token_ids
    for name in ("self", "messages_", "plain", "variables", ""):
        call = ask.chat(chat("x", chat_template_kwargs={name: 1}), ANYONE)
        assert call.requests[0].prompt_token_ids == plain
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(ApiError, match=f"may not name {name}: ") as refused:
            ask.chat(chat("x", chat_template_kwargs={name: None}), ANYONE)
        assert (refused.value.status, refused.value.param) == (400, "chat_template_kwargs")
