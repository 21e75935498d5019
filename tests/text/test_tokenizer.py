"""The tokenizer against the library and transformers, and what it says about broken folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

import inflight
from inflight.text import TextStream, Tokenizer, TokenizerError
from inflight.text.tokenizer import LONG

from .builders import BUILDERS, BYTE_TOKENS, CORPUS, byte_level, llama2, write_folder
from .conftest import Folders

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


@pytest.mark.parametrize("name", BUILDERS)
def test_encodes_and_decodes_as_transformers_does(
    name: str, folders: Folders, tokenizers: dict[str, Tokenizer]
) -> None:
    from transformers import PreTrainedTokenizerFast

    ours, theirs = tokenizers[name], PreTrainedTokenizerFast.from_pretrained(folders[name])
    for text in [*CORPUS, "", f"{theirs.eos_token or ''} in the middle"]:
        for special in (True, False):
            token_ids = ours.encode(text, add_special_tokens=special)
            assert token_ids == theirs.encode(text, add_special_tokens=special)
            assert ours.decode(token_ids, skip_special_tokens=special) == theirs.decode(
                token_ids, skip_special_tokens=special, clean_up_tokenization_spaces=False
            )
    assert (ours.vocab_size, ours.eos_token_id, ours.bos_token_id) == (
        len(theirs),
        theirs.eos_token_id,
        theirs.bos_token_id,
    )


class Watched:
    """A library tokenizer that notes what is asked of it."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return getattr(self._backend, name)


@pytest.mark.parametrize(
    ("length", "asked"), [(LONG - 1, ["encode", "decode"]), (LONG, ["encode_batch_fast", "decode_batch"])]
)
def test_long_texts_take_the_calls_that_let_other_threads_run(length: int, asked: list[str]) -> None:
    backend = byte_level()
    tokenizer = Tokenizer(backend)
    text = (" ".join(CORPUS) * (LONG // len(" ".join(CORPUS)) + 1))[:length]
    expected = backend.encode(text).ids
    tokenizer._backend = watched = Watched(backend)  # type: ignore[assignment]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode((expected * 9)[:length]) == backend.decode((expected * 9)[:length])
    assert watched.asked == asked


def test_half_a_character_in_a_long_text_is_refused_too() -> None:
    with pytest.raises(TokenizerError, match=rf"U\+D800\) at character {LONG}"):
        Tokenizer(byte_level()).encode("x" * LONG + "\ud800")


def test_names_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama2"]
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.id_to_token(3) == "<0x00>"
    assert tokenizer.token_to_id("<0x00>") == 3
    assert [tokenizer.id_to_token(token_id) for token_id in (-1, 10**6, 2**40)] == [None, None, None]
    assert tokenizers["undecoded"].eos_token_id is None


def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    for text in CORPUS:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode()
        assert joined.removeprefix(" ") == tokenizer.decode(token_ids).removeprefix(" ")
    assert tokenizer.token_bytes(10**6) == b""


@pytest.mark.parametrize("name", ["byte_level", "built-in"])
def test_every_token_of_byte_level_bpe_has_bytes(name: str, folders: Folders) -> None:
    """By itself: its text where that is whole, else its part of a character; each of the 256 bytes is a token."""
    tokenizer = Tokenizer.load(BUILT_IN if name == "built-in" else folders[name])
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    assert all(pieces)
    for token_id, piece in enumerate(pieces):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        assert piece.decode(errors="replace") == text
    assert {bytes([byte]) for byte in range(256)} <= set(pieces)
    assert not tokenizer.token_bytes(tokenizer.vocab_size)


def test_byte_tokens_are_single_bytes(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["gemma"]
    token_ids = [tokenizer.token_to_id(token) for token in BYTE_TOKENS]
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids if token_id) == bytes(range(256))


def test_a_first_word_keeps_no_space_but_a_later_one_does(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama2"]
    token_id = tokenizer.token_to_id("▁the")
    assert token_id is not None
    assert (tokenizer.decode([token_id]), tokenizer.token_bytes(token_id)) == ("the", b" the")


def test_padding_and_truncation_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode(CORPUS[0])) == CORPUS[0]


def test_named_tokens_become_special_without_a_new_id(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    config = {"eos_token": "</s>", "pad_token": "[PAD]", "extra_special_tokens": ["a"]}
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend, config))
    assert tokenizer.vocab_size == 2
    assert tokenizer.special_token_ids == {0, 1}
    assert tokenizer.decode([1]) == ""


def test_special_tokens_keep_how_they_treat_spaces(tmp_path: Path) -> None:
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend, {"mask_token": "<mask>"}))
    assert tokenizer.encode("a  <mask>") == tokenizer.encode("a<mask>")


def test_settings_add_tokens_only_where_the_post_processor_adds_none(tmp_path: Path) -> None:
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True, "add_eos_token": True}
    tokenizer = Tokenizer.load(write_folder(tmp_path / "silent", byte_level(), config))
    text = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [tokenizer.bos_token_id, *text, tokenizer.eos_token_id]

    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}
    tokenizer = Tokenizer.load(write_folder(tmp_path / "speaking", llama2(), config))
    text = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [tokenizer.bos_token_id, *text]


def test_says_what_a_folder_lacks(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="no other tokenizer file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(TokenizerError, match=r"only tokenizer\.model; export a fast tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff\xfe", b'{"model": {"type": "None"}}', b"version https"])
def test_says_that_a_tokenizer_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json \({len(content)} bytes\) is not a tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n}', "not valid JSON: .* at line 2"),
        (b"[1]", "a JSON list where an object"),
        (b"\xff", "cannot be read"),
    ],
)
def test_says_that_the_settings_are_broken(tmp_path: Path, content: bytes, message: str) -> None:
    write_folder(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)


def test_refuses_what_is_no_text_and_no_token(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    with pytest.raises(TokenizerError, match=r"surrogate pair \(U\+D83D\) at character 2"):
        tokenizer.encode("ab\ud83d")
    with pytest.raises(TokenizerError, match="not a list"):
        tokenizer.encode([1, 2])  # type: ignore[arg-type]
    for wrong in (-3, 2**40):
        with pytest.raises(TokenizerError, match=f"{wrong} is not a token id; send ids from 0 to"):
            tokenizer.decode([1, wrong])


def test_odd_decoders_are_taken_as_they_are(tmp_path: Path) -> None:
    """A Strip before Fuse works on every token; one after it that takes more than a space is not understood."""
    for parts in ([decoders.Strip(" ", 1, 1), decoders.Fuse()], [decoders.Fuse(), decoders.Strip(" ", 2, 1)]):
        backend = Backend(models.WordLevel({" a ": 0, "b": 1}, unk_token="b"))
        backend.decoder = decoders.Sequence(parts)
        tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
        assert tokenizer.token_bytes(1) == b"b"


def unwilling() -> Backend:
    """A tokenizer with a word less than it needs, and a decoder that panics on a token that is one space."""
    backend = Backend(models.WordLevel({" ": 0, "b": 1}, unk_token="absent"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Strip(" ", 1, 1)
    return backend


@pytest.mark.parametrize("repeats", [1, LONG])
def test_what_the_library_raises_is_a_sentence(repeats: int) -> None:
    tokenizer = Tokenizer(unwilling())
    with pytest.raises(TokenizerError, match=r"^The tokenizer fails on this text \(WordLevel error: Missing"):
        tokenizer.encode("unknown " * repeats)
    with pytest.raises(TokenizerError, match=r"^The tokenizer's decoder fails on these tokens \(slice index"):
        tokenizer.decode([0] * repeats)


def test_streams_and_stop_strings_outlive_tokens_that_cannot_be_decoded() -> None:
    tokenizer = Tokenizer(unwilling())
    stream = TextStream(tokenizer, [0, 0, 2**40, -1], stops=["b"])
    assert stream.push([0]) == "\ufffd"
    stream.push([1])
    assert stream.stopped_by == "b"


def test_a_tokenizer_that_fails_while_it_is_loaded_is_named(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="absent"))
    backend.normalizer = normalizers.Prepend("x")
    backend.add_tokens([AddedToken("a", normalized=True)])
    document = backend.to_str()
    (tmp_path / "tokenizer.json").write_text(document.replace('"Prepend"', '"Precompiled"'))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json .* is not a tokenizer that can be read"):
        Tokenizer.load(tmp_path)


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(TokenizerError, match=r"has 268,435,457 bytes, and at most 268,435,456 are read"):
        Tokenizer.load(tmp_path)
