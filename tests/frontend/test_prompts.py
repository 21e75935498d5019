"""Requests and their seeds, and the text that client and stop check share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from text.builders import byte_level
from tokenizers import normalizers

from inflight.core.types.sampling import SamplingParams
from inflight.frontend.prompts import PromptEncoder, PromptError, stop_text, text_stream
from inflight.text import ChatTemplate, Conversation, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def test_seeds_follow_the_engines_and_the_number() -> None:
    def seeds(engine_seed: int) -> list[int]:
        prompts = PromptEncoder(None, None, engine_seed)
        return [prompts.request(str(n), (1,), SamplingParams(), 0.0).seed for n in range(4)]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 8
    assert all(0 <= seed < 2**64 for seed in seeds(3))
    own = PromptEncoder(None, None, 1).request("0", (1,), SamplingParams(seed=-4), 0.0)
    assert own.seed == -4


def test_token_ids_of_numpy_count() -> None:
    prompts = PromptEncoder(None, None, 0)
    ids = prompts.tokens(list(np.arange(3)))
    assert ids == (0, 1, 2) and all(type(one) is int for one in ids)
    for wrong in ([np.float32(1)], [np.bool_(True)], ["1"]):
        with pytest.raises(PromptError, match="give whole numbers"):
            prompts.tokens(wrong)  # type: ignore[arg-type]


def test_a_template_without_tokenizer_cannot_chat(tiny: Path) -> None:
    prompts = PromptEncoder(None, ChatTemplate.load(tiny), 0)
    assert not prompts.can_chat
    prompts.check_chat()
    with pytest.raises(PromptError, match="This model has no tokenizer; give prompt_token_ids"):
        prompts.render_chat(Conversation([{"role": "user", "content": "a"}]))


def test_a_check_leaves_nothing_for_the_first_conversation(tiny: Path, tokenizer: Tokenizer) -> None:
    """Children that are forked then share it."""
    prompts = PromptEncoder(tokenizer, ChatTemplate.load(tiny), 0)
    prompts.check_chat()
    assert prompts._chats is not None and {"_control", "_encoder"} <= prompts._chats.__dict__.keys()


def test_a_bad_word_of_which_the_tokenizer_makes_nothing_is_named(tmp_path: Path) -> None:
    backend = byte_level()
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.save(str(tmp_path / "tokenizer.json"))
    prompts = PromptEncoder(Tokenizer.load(tmp_path), None, 0)
    for words in (["\u200b"], ["the", "\u200b"]):
        with pytest.raises(PromptError, match=r"bad_words holds '\\u200b', of which the tokenizer makes 0 tokens"):
            prompts.request("0", (1,), SamplingParams(bad_words=words), 0.0)  # type: ignore[arg-type]


def test_stop_check_and_client_read_the_same_text(tokenizer: Tokenizer) -> None:
    prompts = PromptEncoder(tokenizer, None, 0)
    params = SamplingParams(stop=("longest re",), min_tokens=2)
    request = prompts.request("0", prompts.tokens("the"), params, 0.0)
    stop, client = stop_text(tokenizer, request), text_stream(tokenizer, request)
    text, found = "", None
    for token_id in tokenizer.encode(" longest request, and the longest request"):
        found = stop.push(token_id)
        text += client.push((token_id,))
        if found:
            break
    assert found == "longest re" and text + client.finish() == " "


def test_stop_strings_count_from_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abab")
    for least in range(1, len(ids) + 1):
        params = SamplingParams(stop=("a",), min_tokens=least)
        request = PromptEncoder(tokenizer, None, 0).request("0", (1,), params, 0.0)
        stop = stop_text(tokenizer, request)
        found = [stop.push(token_id) for token_id in ids]
        expected = next((n for n in range(least - 1, len(ids)) if "a" in tokenizer.decode([ids[n]])), len(ids))
        assert [one is not None for one in found] == [n >= expected for n in range(len(ids))]
