"""Tokenizers as grammars get them: llguidance asked which tokens are text, and of which bytes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from inflight.text import Tokenizer

from .builders import BYTE_TOKENS, byte_level, gemma, llama2

llguidance = pytest.importorskip("llguidance")
PLAIN = ("<tool_call>", "<｜sep▁it｜>", "<a b>", "two  words", "\n\n\n\n")
SPECIAL = ("<|stop|>", "[STOP]")


def viewed(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    known = tokenizer.for_grammars()
    return llguidance.LLTokenizer(known.as_json, n_vocab=known.count, eos_token=[tokenizer.encode("<|stop|>")[-1]])


@pytest.mark.parametrize("build", [byte_level, llama2, gemma])
def test_only_special_tokens_are_special_and_all_have_the_bytes_of_their_text(build: Callable[[], Backend]) -> None:
    backend = build()
    backend.add_special_tokens([AddedToken(one, rstrip=True) for one in SPECIAL])
    backend.add_tokens([AddedToken(one, normalized=False, lstrip=one == PLAIN[0]) for one in PLAIN])
    tokenizer = Tokenizer(backend)
    view = viewed(tokenizer)
    assert view.vocab_size >= tokenizer.vocab_size
    for token_id in range(tokenizer.vocab_size):
        if token_id in tokenizer.special_token_ids:
            assert view.is_special_token(token_id)
        elif (spelled := tokenizer.token_bytes(token_id)) != b"\xff":  # the library's sign of special ones
            assert not view.is_special_token(token_id) and view.decode_bytes([token_id]) == spelled
    for content in SPECIAL:
        written = view.tokenize_str(f"a{content} ")
        assert view.decode_str(written) == f"a{content} " and not any(map(view.is_special_token, written))


def test_a_token_that_strips_what_stands_around_it_is_none_of_a_text() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<|stop|>"])
    backend.add_tokens([AddedToken("==", rstrip=True, lstrip=True, normalized=False)])
    view = viewed(Tokenizer(backend))
    assert view.decode_str(view.tokenize_str("a  ==  b")) == "a  ==  b"


def test_a_vocabulary_that_is_a_list_is_left_as_the_library_has_it() -> None:
    words = [("<unk>", 0.0), *((one, -1.0) for one in BYTE_TOKENS), ("▁", -1.0), ("▁a", -1.0)]
    backend = Backend(models.Unigram(words, 0, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<|stop|>"])
    backend.add_tokens(["<tool_call>"])
    tokenizer = Tokenizer(backend)
    view, known = viewed(tokenizer), tokenizer.for_grammars()
    assert view.decode_str(view.tokenize_str(" a")) == " a" and known.plain == {}
    assert known.special == {one: tokenizer.token_to_id(one) for one in ("<|stop|>", "<tool_call>")}
    assert all(map(view.is_special_token, known.special.values()))


def test_ids_without_a_token_below_an_added_one_move_no_id() -> None:
    made = json.loads(byte_level().to_str())
    words = made["model"]["vocab"]
    last = len(words)
    words |= {"<|stop|>": last + 7, "<tool_call>": last + 9}
    made["added_tokens"] = [
        {**made["added_tokens"][0], "id": words[content], "content": content, "special": content == "<|stop|>"}
        for content in ("<|stop|>", "<tool_call>")
    ]
    tokenizer = Tokenizer(Backend.from_str(json.dumps(made)))
    assert tokenizer.encode("<|stop|><tool_call>") == [last + 7, last + 9]
    view = viewed(tokenizer)
    assert view.decode_str([last + 9]) == "<tool_call>" and not view.is_special_token(last + 9)
    assert view.is_special_token(last + 7) and view.is_special_token(last + 8)
