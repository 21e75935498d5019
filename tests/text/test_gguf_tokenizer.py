"""Tokenizers from GGUF metadata: what they make of texts is what the tokenizers make that the metadata are of."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import byte_level as byte_level_keys
from gguf_files import finish
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from inflight.models.errors import ModelError
from inflight.text import ChatTemplate, ChatTemplateError, Conversation, TextFiles, Tokenizer, TokenizerError
from inflight.text.gguf_tokenizer import pre_tokenizer_of

from .builders import BYTE_TOKENS, CORPUS, byte_level, gemma, llama2

TEXTS = [
    *CORPUS,
    "",
    " leading and trailing ",
    "<|begin|>user: <think>hm</think><|end|>  two words",
    "I'm sure THEY'LL've 1234567 x=3.14; HelloWorld fooBar/baz\r\n\r\n  \t end",
    "zwölf Boxkämpfer e\u0301 ǅ ⅷ ①²³ ́combining Ω mega\u200d",
    "数字１２３ かな カナ 한글 — ‘quoted’ 。、",
    "   \n \n\n   ",
]
SPLIT_KINDS = ("llama-bpe", "qwen2", "qwen35", "gpt-2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "default")


def trained(pre: str) -> Backend:
    """A byte-level BPE whose texts are split as `pre` says, with special and added tokens."""
    splits = pre_tokenizer_of(pre)
    assert splits is not None
    backend = Backend(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    backend.pre_tokenizer = splits.pre_tokenizer
    if splits.normalizer is not None:
        backend.normalizer = splits.normalizer
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([*CORPUS, *TEXTS], trainer)
    backend.add_special_tokens(["<|begin|>", "<|end|>", "<\uff5cbos\uff5c>"])
    backend.add_tokens(["<think>", "two words", "Ωmega"])
    return backend


def file_of(backend: Backend, path: Path, pre: str, **keys: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    byte_level_keys(writer, json.loads(backend.to_str()), pre)
    for key, value in keys.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(f"tokenizer.ggml.{key}", value)
    return finish(writer, path)


@pytest.mark.parametrize("pre", SPLIT_KINDS)
def test_byte_level_is_what_it_was(pre: str, tmp_path: Path) -> None:
    backend = trained(pre)
    known, found = Tokenizer(backend), Tokenizer.load(file_of(backend, tmp_path / "model.gguf", pre))
    assert found.vocab_size == known.vocab_size and found.special_token_ids == known.special_token_ids
    for text in TEXTS:
        ids = known.encode(text)
        assert found.encode(text) == ids
        assert found.decode(ids) == known.decode(ids) and found.decode(ids, False) == known.decode(ids, False)
    assert [found.token_bytes(one) for one in range(430)] == [known.token_bytes(one) for one in range(430)]


@pytest.mark.parametrize(
    ("pre", "published"),
    [
        ("gpt-2", pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (
            "smollm",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
        ),
    ],
)
def test_splits_that_files_spell_in_another_way(pre: str, published: Any) -> None:
    splits = pre_tokenizer_of(pre)
    assert splits is not None
    for text in TEXTS:
        assert splits.pre_tokenizer.pre_tokenize_str(text) == published.pre_tokenize_str(text)


def test_splits_are_those_that_transformers_has() -> None:
    """Compare the splits of all names that both have."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    compared = 0
    for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items():
        splits, theirs = pre_tokenizer_of(name), pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        if splits is not None:
            expected = pre_tokenizers.Sequence([theirs, pre_tokenizers.ByteLevel(False, use_regex=False)])
            assert all(splits.pre_tokenizer.pre_tokenize_str(one) == expected.pre_tokenize_str(one) for one in TEXTS)
            compared += 1
    assert compared > 15


def test_what_fills_the_table_up_is_no_token(tmp_path: Path) -> None:
    backend = byte_level()
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    data = json.loads(backend.to_str())
    data["added_tokens"][-1]["id"] += 3
    byte_level_keys(writer, data)
    found = Tokenizer.load(finish(writer, tmp_path / "model.gguf"))
    last = data["added_tokens"][-1]["id"]
    assert found.id_to_token(last) == "Ωmega" and found.id_to_token(last - 1) is None
    assert found.encode("Ωmega") == [last] and found.decode([last - 1, last]) == "Ωmega"


# -- sentencepiece -----------------------------------------------------------------------------------------------------
def sentencepiece_file(backend: Backend, path: Path, architecture: str, prefix: bool, special: int = 3) -> Path:
    """Scores as the tokens are ordered, no merges; runs of spaces as the converter writes them."""
    vocab = backend.get_vocab(with_added_tokens=False)
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    tokens = [" " * len(one) if len(one) > 1 and set(one) == {"▁"} else one for one in tokens]
    kinds = [4 if one.isspace() and len(one) > 1 else kind for one, kind in zip(tokens, kinds, strict=True)]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(prefix)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return finish(writer, path)


def merged_by_hand(text: str, vocab: dict[str, int], prefix: bool) -> list[int]:
    """Sentencepiece's rule: of all neighbouring tokens that make a token, the best one is merged, the leftmost of
    equals; what is left and is no token is bytes."""
    pieces = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
    while True:
        pairs = [
            (vocab[a + b], at)
            for at, (a, b) in enumerate(pairwise(pieces))
            if a in vocab and b in vocab and a + b in vocab
        ]
        if not pairs:
            break
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    ids = []
    for piece in pieces:
        ids += [vocab[piece]] if piece in vocab else [vocab[BYTE_TOKENS[byte]] for byte in piece.encode()]
    return ids


@pytest.mark.parametrize(("builder", "architecture", "prefix"), [(llama2, "llama", True), (gemma, "gemma2", False)])
def test_sentencepiece_merges_by_score(builder: Any, architecture: str, prefix: bool, tmp_path: Path) -> None:
    original = builder()
    found = Tokenizer.load(sentencepiece_file(original, tmp_path / "model.gguf", architecture, prefix))
    vocab = original.get_vocab(with_added_tokens=False)
    for text in [one for one in TEXTS if "<" not in one]:
        ids = merged_by_hand(text, vocab, prefix)
        assert found.encode(text, add_special_tokens=False) == ids
        assert found.encode(text) == [1, *ids]  # sentencepiece vocabularies begin texts where nothing is said
        assert found.decode(ids) == Tokenizer(original).decode(ids) == text
    assert found.special_token_ids == {0, 1, 2}
    assert (found.bos_token_id, found.eos_token_id) == (1, 2)


# -- settings ----------------------------------------------------------------------------------------------------------
def test_named_tokens_and_templates_are_those_of_the_keys(tmp_path: Path) -> None:
    backend = byte_level()
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    byte_level_keys(writer, json.loads(backend.to_str()), "llama-bpe")
    writer.add_bos_token_id(begin := backend.token_to_id("<|begin|>"))
    writer.add_eos_token_id(backend.token_to_id("<|end|>"))
    writer.add_pad_token_id(2**31)
    writer.add_chat_template(
        [{"name": "default", "template": "{{ bos_token }}hi"}, {"name": "tool_use", "template": "t"}]
    )
    path = finish(writer, tmp_path / "model.gguf")
    found = Tokenizer.load(path)
    assert found.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert found.encode("a")[0] == begin  # as Llama 3's texts begin where the file does not say
    template = ChatTemplate.load(path)
    assert template.render(Conversation([{"role": "user", "content": "x"}])) == "<|begin|>hi"
    assert template.render(Conversation([{"role": "user", "content": "x"}], tools=[{"type": "function"}])) == "t"
    with pytest.raises(ChatTemplateError, match=r"\(the metadata of silent\.gguf have no tokenizer\.chat_template\)"):
        TextFiles(str(file_of(backend, tmp_path / "silent.gguf", "llama-bpe"))).load_template().render(
            Conversation([{"role": "user", "content": "x"}])
        )
    silent = Tokenizer.load(
        file_of(backend, tmp_path / "silent.gguf", "llama-bpe", add_bos_token=False, bos_token_id=begin)
    )
    assert silent.encode("a")[0] != begin
    assert not ChatTemplate.load(tmp_path / "silent.gguf").is_available


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "bert"}, "vocabulary of the kind 'bert'; read are gpt2 .* and llama"),
        ({"pre": "klingon"}, "split in a way that is not known here .*'klingon'"),
        ({"types": [1, 1]}, "has 3 tokens, but types of 2"),
        ({"merges": ["ab"]}, "has the merge 'ab', which are no two tokens"),
        ({"merges": ["a z"]}, "makes no tokenizer: .*`z`"),
        ({"tokens": []}, "has 0 tokens"),
        ({"model": "llama", "scores": [1.0]}, "has 3 tokens, but scores of 1"),
    ],
)
def test_each_fault_of_a_vocabulary_is_a_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    given = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab"],
        "types": [1, 1, 1],
        "merges": ["a b"],
    } | change
    if given["model"] == "llama":
        del given["merges"]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    names = {"types": "token_type"}
    for name, value in given.items():
        if value != []:
            put = writer.add_array if isinstance(value, list) else writer.add_string
            put(f"tokenizer.ggml.{names.get(name, name)}", value)
    with pytest.raises((TokenizerError, ModelError), match=sentence):
        Tokenizer.load(finish(writer, tmp_path / "model.gguf"))


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_tokens_that_fill_gaps_are_those_of_the_keys(names: tuple[str, ...], tmp_path: Path) -> None:
    backend = trained("qwen2")
    tokens = ["<before>", "<after>", "<here>"]
    backend.add_special_tokens(tokens)
    keys = {f"{name}_token_id": backend.token_to_id(token) for name, token in zip(names, tokens, strict=True)}
    found = Tokenizer.load(file_of(backend, tmp_path / "model.gguf", "qwen2", **keys))
    assert found.fill_in_middle is not None
    ids = found.fill_in_middle.prompt("hello <here>", "world").token_ids
    assert found.decode(ids, skip_special_tokens=False) == "<before>hello <here><after>world<here>"
    assert ids.count(backend.token_to_id("<here>")) == 1
    known = Tokenizer(backend, {"fill_in_middle": dict(zip(("prefix", "suffix", "middle"), tokens, strict=True))})
    assert known.fill_in_middle is not None
    assert known.fill_in_middle.prompt("hello <here>", "world").token_ids == ids
