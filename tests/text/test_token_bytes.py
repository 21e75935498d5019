"""How much text a token can stand for: never less than it does, and nothing where that is not certain."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from inflight.text.token_bytes import COMPOSED, max_token_characters

from .builders import BUILDERS, CORPUS, byte_level, gemma, llama2, wordpiece

TEXTS = [*CORPUS, "\u03b1\u0313\u0300\u0345" * 50, "longest " * 40, "two words" * 30, " " * 200, "<|begin|>" * 9]


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.NFKC()])
def test_no_text_has_more_characters_to_a_token(name: str, normalizer: normalizers.Normalizer | None) -> None:
    backend: Backend = BUILDERS[name]()
    if normalizer is not None and backend.normalizer is None:
        backend.normalizer = normalizer
    longest = max_token_characters(backend)
    if longest is not None:
        assert all(len(text) <= longest * len(backend.encode(text).ids) for text in TEXTS)


def test_it_is_the_longest_name_and_four_times_that_where_characters_are_put_together() -> None:
    plain, composing = byte_level(), byte_level()
    composing.normalizer = normalizers.NFC()
    longest = max(map(len, plain.get_vocab()))
    assert max_token_characters(plain) == longest
    assert max_token_characters(composing) == COMPOSED * longest
    assert max_token_characters(llama2()) == max(map(len, llama2().get_vocab()))
    assert max_token_characters(gemma()) is not None


def test_nothing_is_certain_where_characters_may_vanish() -> None:
    assert max_token_characters(wordpiece()) is None, "unknown words are one token"
    for normalizer in (normalizers.StripAccents(), normalizers.Replace("  ", " "), normalizers.Strip()):
        backend = byte_level()
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizer])
        assert max_token_characters(backend) is None, normalizer
    for pre_tokenizer in (pre_tokenizers.Whitespace(), pre_tokenizers.Split(" ", "removed")):
        backend = byte_level()
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, pre_tokenizers.ByteLevel()])
        assert max_token_characters(backend) is None, pre_tokenizer
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<greedy>", lstrip=True)])
    assert max_token_characters(backend) is None, "it takes the spaces before it"
    backend = byte_level()
    backend.pre_tokenizer = None  # type: ignore[assignment]
    assert max_token_characters(backend) is None, "characters without a token are left out"
