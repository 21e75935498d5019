"""The detokenizer against decoding everything at once, and what it may hold back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text import IncrementalDetokenizer, Tokenizer

from .builders import BYTE_TOKENS, CORPUS

MARK = "\ufffd"
FRAGMENTS = [
    "😀",
    "👩‍👩‍👧",
    "🇫🇷",
    "漢",
    "한",
    "e\u0301",
    "\u0308",
    MARK,
    "é",
    " ",
    "  ",
    "\n",
    "a",
    "the ",
    "<0x41>",
    "▁",
]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)
# Ids above the vocabulary too: embeddings are padded.
id_lists = st.lists(st.integers(0, 520) | st.integers(3, 258), max_size=14)


def pieces_of(
    tokenizer: Tokenizer, token_ids: Iterable[int], prompt: Sequence[int] = (), skip: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def expected(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int], skip: bool) -> str:
    """Return what decoding prompt and output adds to the common beginning with decoding the prompt."""
    alone = tokenizer.decode(prompt, skip)
    whole = tokenizer.decode([*prompt, *token_ids], skip)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(alone, whole, strict=False)))
    return whole[shared:]


def library_loses_characters(tokenizer: Tokenizer, token_ids: Iterable[int], skip: bool) -> bool:
    """Whether a run of byte tokens is broken and yet holds whole characters, which the library then discards."""
    if tokenizer.token_to_id("<0x00>") is None:
        return False
    kept = [i for i in token_ids if tokenizer.id_to_token(i) and not (skip and i in tokenizer.special_token_ids)]
    for is_byte, run in itertools.groupby(kept, lambda i: tokenizer.id_to_token(i) in BYTE_TOKENS):
        data = b"".join(map(tokenizer.token_bytes, run)) if is_byte else b""
        if len(data.decode(errors="ignore").encode()) not in (0, len(data)):
            return True
    return False


@given(text=texts, prompt=texts, skip=st.booleans())
@settings(max_examples=60, deadline=None)
def test_text_comes_out_as_decoded_at_once(tokenizer: Tokenizer, text: str, prompt: str, skip: bool) -> None:
    prompt_ids = tokenizer.encode(prompt)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces_of(tokenizer, token_ids, prompt_ids, skip)) == expected(
        tokenizer, token_ids, prompt_ids, skip
    )


@given(token_ids=id_lists, prompt=id_lists, skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_tokens_come_out_as_decoded_at_once(
    tokenizer: Tokenizer, token_ids: list[int], prompt: list[int], skip: bool
) -> None:
    text = "".join(pieces_of(tokenizer, token_ids, prompt, skip))
    if not any(library_loses_characters(tokenizer, ids, skip) for ids in (prompt, [*prompt, *token_ids])):
        assert text == expected(tokenizer, token_ids, prompt, skip)


@given(text=texts, prompt=texts)
@settings(max_examples=60, deadline=None)
def test_no_half_character_comes_out(tokenizer: Tokenizer, text: str, prompt: str) -> None:
    text = text.replace(MARK, "")
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    given_so_far = ""
    for piece in pieces_of(tokenizer, token_ids, tokenizer.encode(prompt)):
        assert MARK not in piece
        given_so_far += piece
    assert given_so_far == expected(tokenizer, token_ids, tokenizer.encode(prompt), True)


@given(data=st.lists(st.integers(0, 255), max_size=16).map(bytes))
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("name", ["byte_level", "gemma"])
def test_text_is_given_as_soon_as_it_is_certain(name: str, tokenizers: dict[str, Tokenizer], data: bytes) -> None:
    """After every byte, what has not come out is at most the beginning of one character that can still be completed."""
    tokenizer = tokenizers[name]
    detokenizer = IncrementalDetokenizer(tokenizer)
    text = ""
    for end, token_id in enumerate(byte_ids(tokenizer, data), start=1):
        text += detokenizer.push(token_id)
        waiting = next(
            (data[start:end] for start in range(max(0, end - 3), end) if can_be_completed(data[start:end])), b""
        )
        settled = data[: end - len(waiting)]
        assert text.replace(MARK, "") == settled.decode(errors="ignore").replace(MARK, "")
        if settled and not settled.decode(errors="replace").endswith(MARK):
            assert text.endswith(settled.decode(errors="replace")[-1])
        elif settled:
            assert text.endswith(MARK)


def can_be_completed(data: bytes) -> bool:
    """Whether the bytes begin a character without being one: tried with every kind of ending."""
    if len(data) == 2 and data[0] == 0xED and 0xA0 <= data[1] <= 0xBF:
        return True  # the beginning of a surrogate: Python's decoder waits for one byte more before it gives it up
    endings = [b"\x80" * n for n in (1, 2, 3)] + [b"\xbf" * n for n in (1, 2, 3)]
    return any(len((data + ending).decode(errors="replace")) == 1 and is_valid(data + ending) for ending in endings)


def is_valid(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    if tokenizer.token_to_id("<0x00>") is not None:
        return [tokenizer.token_to_id(BYTE_TOKENS[byte]) or 0 for byte in data]
    return [by_byte[bytes((byte,))] for byte in data]


@pytest.mark.parametrize("name", ["byte_level", "llama2", "gemma"])
class TestBytes:
    def test_a_character_waits_for_its_last_byte(self, name: str, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers[name]
        assert pieces_of(tokenizer, byte_ids(tokenizer, "😀é".encode())) == ["", "", "", "😀", "", "é", ""]

    def test_a_broken_character_comes_out_once_it_cannot_be_completed(
        self, name: str, tokenizers: dict[str, Tokenizer]
    ) -> None:
        tokenizer = tokenizers[name]
        first, rest = pieces_of(tokenizer, byte_ids(tokenizer, b"\xffa"))[:2]
        assert (first, rest) == (MARK, "a")
        pieces = pieces_of(tokenizer, byte_ids(tokenizer, b"\xe4\xb8a"))
        assert pieces in (["", "", MARK + "a", ""], ["", "", MARK * 2 + "a", ""])

    def test_a_written_mark_is_not_held_back(self, name: str, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers[name]
        assert pieces_of(tokenizer, byte_ids(tokenizer, MARK.encode())) == ["", "", MARK, ""]

    def test_the_rest_comes_out_at_the_end(self, name: str, tokenizers: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers[name]
        *pushed, rest = pieces_of(tokenizer, byte_ids(tokenizer, b"\n" + "😀".encode()[:3]))
        assert pushed == ["\n", "", "", ""]
        assert rest in (MARK, MARK * 3)

    def test_the_output_may_complete_the_prompts_last_character(
        self, name: str, tokenizers: dict[str, Tokenizer]
    ) -> None:
        tokenizer = tokenizers[name]
        *prompt, last = byte_ids(tokenizer, "a😀".encode())
        assert pieces_of(tokenizer, [last], prompt) == ["😀", ""]
        assert pieces_of(tokenizer, byte_ids(tokenizer, b"a"), prompt) == ["a", ""]
        assert pieces_of(tokenizer, [], prompt) == [""]


def test_whole_characters_stand_where_the_library_loses_them(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama2"]
    token_ids = byte_ids(tokenizer, b"\n\xf0\x9f")
    assert tokenizer.decode(token_ids) == MARK * 3
    assert pieces_of(tokenizer, token_ids) == ["\n", "", "", MARK * 2]


def test_the_prompt_decides_about_the_first_space(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama2"]
    the = tokenizer.token_to_id("▁the")
    assert the is not None
    assert pieces_of(tokenizer, [the, the]) == ["the", " the", ""]
    assert pieces_of(tokenizer, [the], prompt=[1]) == ["the", ""], "a skipped <s> is no text"
    assert pieces_of(tokenizer, [the], prompt=[1], skip=False) == [" the", ""]
    assert pieces_of(tokenizer, [the], prompt=tokenizer.encode("[/INST]")) == [" the", ""]
    assert pieces_of(tokenizer, [1, the, 2], prompt=[the, 2]) == ["", " the", "", ""]
    assert pieces_of(tokenizer, byte_ids(tokenizer, b" a")) == ["", "a", ""], "a space of its own is stripped too"


def test_a_long_prompt_is_not_read_whole(tokenizer: Tokenizer) -> None:
    class Prompt(list[int]):
        def __reversed__(self) -> Iterable[int]:  # type: ignore[override]
            for read, token_id in enumerate(super().__reversed__()):
                assert read < 8
                yield token_id

    prompt = Prompt(tokenizer.encode(" ".join(CORPUS[:2]), add_special_tokens=False))
    token_ids = tokenizer.encode("hello", add_special_tokens=False)
    assert "".join(pieces_of(tokenizer, token_ids, prompt)) == expected(tokenizer, token_ids, list(prompt), True)
