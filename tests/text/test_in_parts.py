"""Texts tokenized part by part: the same tokens as at once, whatever the tokenizer and the text."""

from __future__ import annotations

import random

import pytest

from inflight.text import Tokenizer, TokenizerError, in_parts

from .builders import BUILDERS

CHANCE = random.Random(1)
LENGTH = 12_000
TEXTS = {
    "digits": "".join(CHANCE.choices("0123456789", k=LENGTH)),
    "one letter": "a" * LENGTH,
    "letters": "".join(CHANCE.choices("abcdefghij", k=LENGTH)),
    "words": " ".join("".join(CHANCE.choices("abcdefgh", k=CHANCE.randint(1, 9))) for _ in range(LENGTH // 5)),
    "spaces": " " * LENGTH,
    "emoji": "".join(CHANCE.choices("😀🎉é漢字👩\u200d", k=LENGTH)),
    "lines": "\n\n \t".join(["Hello, world's 123 test!"] * (LENGTH // 25)),
    "short": "Hello",
    "empty": "",
}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_parts, "PART", 1 << 12)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", BUILDERS)
def test_parts_are_the_whole(name: str, text: str, tokenizers: dict[str, Tokenizer]) -> None:
    parts = list(tokenizers[name].encode_in_parts(text))
    assert [one for part in parts for one in part] == tokenizers[name].encode(text, add_special_tokens=False)


def test_a_part_is_no_longer_than_it_must_be(tokenizers: dict[str, Tokenizer]) -> None:
    """Also where the tokenizer puts a space before each text; a word that is one token cannot be cut."""
    for text in (TEXTS["digits"], TEXTS["letters"], TEXTS["words"]):
        for name in ("byte_level", "llama2", "gemma", "metaspace"):
            assert len(list(tokenizers[name].encode_in_parts(text))) > 2
    assert len(list(tokenizers["wordpiece"].encode_in_parts(TEXTS["digits"]))) == 1


def test_half_a_character_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(TokenizerError, match="half"):
        list(tokenizers["byte_level"].encode_in_parts("x" * 5000 + "\ud800"))
