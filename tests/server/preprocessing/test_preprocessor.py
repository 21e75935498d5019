"""From bodies to token ids: what is refused before the engine is asked, and before anything is cut."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common import conversation
from inflight.server.common.prepared import (
    EndpointName,
    Limits,
    PreparedAnswer,
    PreparedChat,
    PreparedCompletion,
    Prompt,
    packed,
)
from inflight.server.errors import ApiError
from inflight.server.preprocessing.worker import Preprocessor
from inflight.text import ChatTemplate, Tokenizer

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


class Cut(Exception):
    """A text was cut into tokens."""


class Uncut(Tokenizer):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise Cut


def preprocessor(kind: type[Tokenizer] = Tokenizer, **limits: Any) -> Preprocessor:
    tokenizer = kind.load(BUILT_IN)
    return Preprocessor(PromptEncoder(tokenizer, ChatTemplate.load(BUILT_IN), 0), tokenizer, Limits(**limits))


def completion(prompt: Any, **more: Any) -> tuple[EndpointName, dict[str, Any]]:
    return "completion", {"prompt": prompt, **more}


def chat(content: Any, **more: Any) -> tuple[EndpointName, dict[str, Any]]:
    return "chat", {"messages": [{"role": "user", "content": content}], **more}


def ids(of: Preprocessor, asked: tuple[EndpointName, dict[str, Any]]) -> list[tuple[int, ...]]:
    prepared = of.prepared(asked[0], json.dumps(asked[1]).encode())
    assert isinstance(prepared, PreparedCompletion | PreparedChat)
    return [prompt.ids() for prompt in prepared.prompts]


def refusal(of: Preprocessor, asked: tuple[EndpointName, dict[str, Any]]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        of.prepared(asked[0], json.dumps(asked[1]).encode())
    assert refused.value.status == 400 and refused.value.retry_after is None
    return refused.value


@pytest.mark.parametrize(
    ("asked", "message", "field"),
    [
        (completion("x", n=5), "5 sequences (5 samples), and the queue takes 4", "n"),
        (completion("x", best_of=5), "5 sequences (5 samples), and the queue takes 4", "n"),
        (completion(["x"] * 5), "5 sequences (5 prompts of 1 samples each), and the queue takes 4", "prompt"),
        (completion(["x"] * 3, n=2), "6 sequences (3 prompts of 2 samples each), and the queue takes 4", "prompt"),
        (completion(["x"] * 2, n=5), "10 sequences (2 prompts of 5 samples each), and the queue takes 4", "n"),
        (chat("x", n=5), "5 sequences (5 samples), and the queue takes 4", "n"),
    ],
)
def test_a_call_that_could_never_wait_is_refused_for_good(
    asked: tuple[EndpointName, dict[str, Any]], message: str, field: str
) -> None:
    error = refusal(preprocessor(max_sequences=4), asked)
    assert message in error.message and error.param == field


def test_a_call_that_fits_the_queue_exactly_passes() -> None:
    assert len(ids(preprocessor(max_sequences=4), completion(["x", "y"], n=2))) == 2


def test_text_that_certainly_cannot_fit_is_not_cut_into_tokens() -> None:
    strict = preprocessor(Uncut, max_model_len=16)
    longest = Tokenizer.load(BUILT_IN).longest_token
    assert longest is not None
    most = 16 * longest
    for asked, field in ((completion(["y" * (most + 1)]), "prompt"), (chat("y" * (most + 1)), "messages")):
        error = refusal(strict, asked)
        assert "maximum context length is 16 tokens" in error.message
        assert f"a token has at most {longest};" in error.message
        assert (error.param, error.code) == (field, "context_length_exceeded")
    for text, of in (("y" * most, strict), ("y" * (most + 1), preprocessor(Uncut))):
        with pytest.raises(Cut):  # it might fit, as far as anybody knows here
            of.prepared("completion", json.dumps({"prompt": text}).encode())


def test_text_that_hardly_fits_is_counted_in_parts_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Tokenizer):
        longest = 0

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            Counted.longest = max(Counted.longest, len(text))
            return super().encode(text, add_special_tokens)

    text = "many words " * 200_000
    error = refusal(preprocessor(Counted, max_model_len=300_000), completion(text))
    assert error.code == "context_length_exceeded" and "maximum context length is 300000 tokens" in error.message
    assert Counted.longest < 200_000
    monkeypatch.setattr(conversation, "LONG_FOR_ITS_TOKENS", 1)
    text = "many words " * 30_000
    whole = tuple(Tokenizer.load(BUILT_IN).encode(text))
    assert ids(preprocessor(Counted, max_model_len=len(whole)), completion(text)) == [whole]
    assert refusal(preprocessor(Counted, max_model_len=len(whole) - 100), completion(text)).param == "prompt"


def test_template_variables_may_have_any_name_but_three() -> None:
    ask = preprocessor()
    plain = ids(ask, chat("x"))
    for name in ("self", "messages_", "plain", "variables", ""):
        assert ids(ask, chat("x", chat_template_kwargs={name: 1})) == plain
    for name in ("messages", "tools", "add_generation_prompt"):
        error = refusal(ask, chat("x", chat_template_kwargs={name: None}))
        assert f"may not name {name}: " in error.message and error.param == "chat_template_kwargs"


def test_prompts_of_every_form() -> None:
    ask, tokenizer = preprocessor(), Tokenizer.load(BUILT_IN)
    one, two = tuple(tokenizer.encode("one")), tuple(tokenizer.encode("two"))
    assert ids(ask, completion("one")) == [one]
    assert ids(ask, completion(["one", "two"])) == [one, two]
    assert ids(ask, completion(list(one))) == [one]
    assert ids(ask, completion([list(one), list(two)])) == [one, two]
    for mixed in (["a", 1], [1, "a"], [[1], "a"], [1, [2]]):
        error = refusal(ask, completion(mixed))
        assert "one kind only" in error.message and error.param == "prompt"


def test_the_end_of_a_prompt_is_kept_where_it_is_truncated() -> None:
    ask = preprocessor(max_model_len=6)
    (whole,) = ids(ask, completion("one two three"))
    assert len(whole) > 2
    assert ids(ask, completion("one two three", truncate_prompt_tokens=2)) == [whole[-2:]]
    assert ids(ask, completion(list(range(9)), truncate_prompt_tokens=-1)) == [(3, 4, 5, 6, 7, 8)]
    unlimited = preprocessor()
    (chatted,) = ids(unlimited, chat("one two three"))
    assert ids(unlimited, chat("one two three", truncate_prompt_tokens=2)) == [chatted[-2:]]
    assert refusal(ask, completion("x", truncate_prompt_tokens=0)).param == "truncate_prompt_tokens"
    echoed = ask.prepared("completion", b'{"prompt": [65, 66, 67], "echo": true, "truncate_prompt_tokens": 2}')
    assert isinstance(echoed, PreparedCompletion)
    assert echoed.prompts[0].text == Tokenizer.load(BUILT_IN).decode([66, 67])


def test_an_answer_has_so_many_log_probabilities_and_no_more() -> None:
    ask = preprocessor(max_logprobs=1000)
    assert ids(ask, completion("x", n=10, max_tokens=10, logprobs=9))
    for asked in (
        completion("x", n=10, max_tokens=10, logprobs=10),
        completion(["x", "y"], n=10, max_tokens=10, logprobs=9),
        chat("x", n=11, max_tokens=10, logprobs=True, top_logprobs=9),
        completion(list(range(1, 101)), echo=True, max_tokens=0, logprobs=10),
        completion(list(range(1, 101)), prompt_logprobs=10),
    ):
        error = refusal(ask, asked)
        assert "1,000 are allowed" in error.message and error.param == "logprobs"


def test_allowed_tokens_are_listed_once_each_and_are_of_the_vocabulary() -> None:
    given = completion([1], allowed_token_ids=[7, 3, 7, 3] * 1000)
    prepared = preprocessor(vocab_size=8).prepared(given[0], json.dumps(given[1]).encode())
    assert isinstance(prepared, PreparedCompletion) and prepared.settings.allowed_token_ids == [3, 7]
    refused = refusal(preprocessor(vocab_size=7), given)
    assert refused.param == "allowed_token_ids" and "7, but the vocabulary has 7 tokens (0 to 6)" in refused.message


def test_what_templates_read_of_a_message_and_what_is_passed_over() -> None:
    ask = preprocessor()
    plain = ids(ask, chat("x"))
    message = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    more = {"annotations": [], "refusal": None, "audio": None, "function_call": None, "id": "m1"}
    assert ids(ask, ("chat", {"messages": [message | more]})) == plain
    developer = {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]}
    system = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}
    assert ids(ask, ("chat", developer)) == ids(ask, ("chat", system))


def test_tokens_and_back() -> None:
    ask = preprocessor(max_model_len=99)
    tokenized = ask.prepared("tokenize", b'{"prompt": "one two", "return_token_strs": true}')
    assert isinstance(tokenized, PreparedAnswer)
    answer = json.loads(tokenized.json)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) and answer["max_model_len"] == 99
    back = ask.prepared("detokenize", json.dumps({"tokens": answer["tokens"]}).encode())
    assert isinstance(back, PreparedAnswer) and json.loads(back.json) == dict.fromkeys(("prompt", "content"), "one two")


def test_prompts_share_their_numbers_however_they_are_unpacked() -> None:
    longest = [Prompt(packed(range(start, 200_000, 7))) for start in range(7)]
    with ThreadPoolExecutor(4) as threads:
        unpacked = list(threads.map(Prompt.ids, longest * 3))
    assert unpacked == [tuple(range(start, 200_000, 7)) for start in range(7)] * 3
    assert all(one is other for one, other in zip(unpacked[3], unpacked[10], strict=True))
    assert Prompt(packed([5, 1 << 31])).ids() == (5, 1 << 31) and Prompt(b"").ids() == ()
