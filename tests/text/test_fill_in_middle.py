"""Fill-in-the-middle prompts: makers' orders, other files, text that spells a token, cuts, tokens that files name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.text import Tokenizer
from inflight.text.fill_in_middle import ContextFile, FillInMiddle
from inflight.text.tokenizer_config import special_tokens

from .builders import byte_level, gemma, llama2, write_folder

FILES = (ContextFile("a.py", "one"), ContextFile("b.py", "two"))
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<|endoftext|>")
DEEPSEEK = (
    "<\uff5cfim▁begin\uff5c>",
    "<\uff5cfim▁hole\uff5c>",
    "<\uff5cfim▁end\uff5c>",
    "<\uff5cend▁of▁sentence\uff5c>",
)


def tokenizer(builder: Any, *special: str, config: dict[str, Any] | None = None) -> Tokenizer:
    backend = builder()
    backend.add_special_tokens(list(special))
    return Tokenizer(backend, config)


def filler(builder: Any, *special: str, config: dict[str, Any] | None = None) -> tuple[Tokenizer, FillInMiddle]:
    made = tokenizer(builder, *special, config=config)
    assert made.fill_in_middle is not None
    return made, made.fill_in_middle


@pytest.mark.parametrize(
    ("builder", "special", "models", "alone", "among_files"),
    [
        (
            byte_level,
            QWEN,
            "Qwen",
            "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
            "<|repo_name|>repository\n<|file_sep|>a.py\none\n<|file_sep|>b.py\ntwo\n<|file_sep|>current_file\n"
            "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
        ),
        (
            byte_level,
            (*STARCODER, "<repo_name>", "<file_sep>"),
            "StarCoder2",
            "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>",
            "<repo_name>repository<file_sep>a.py\none<file_sep>b.py\ntwo<file_sep>"
            "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>",
        ),
        (
            byte_level,
            (*STARCODER, "<reponame>", "<filename>"),
            "Granite Code",
            "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>",
            "a.py\none\n\nb.py\ntwo\n\n<fim_prefix>def f(<fim_suffix>): pass<fim_middle>",
        ),
        (
            byte_level,
            (*QWEN[:3], "<|fim_pad|>", "<|end_of_text|>"),
            "Granite 3.3",
            "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
            "a.py\none\n\nb.py\ntwo\n\n<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
        ),
        (
            byte_level,
            DEEPSEEK,
            "DeepSeek",
            "<\uff5cfim▁begin\uff5c>def f(<\uff5cfim▁hole\uff5c>): pass<\uff5cfim▁end\uff5c>",
            "#a.py\none\n#b.py\ntwo\n<\uff5cfim▁begin\uff5c>def f(<\uff5cfim▁hole\uff5c>): pass<\uff5cfim▁end\uff5c>",
        ),
        (
            byte_level,
            ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
            "Codestral",
            "[SUFFIX]): pass[PREFIX]def f(",
            "[SUFFIX]): pass[PREFIX]+++++ a.py\none\n\n+++++ b.py\ntwo\n\n+++++ current_file\ndef f(",
        ),
        (
            gemma,
            (*QWEN[:3], "<|file_separator|>"),
            "CodeGemma",
            "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
            "a.py\none<|file_separator|>b.py\ntwo<|file_separator|>"
            "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
        ),
    ],
)
def test_a_prompt_is_as_the_maker_writes_it(
    builder: Any, special: tuple[str, ...], models: str, alone: str, among_files: str
) -> None:
    made, fill = filler(builder, *special)
    assert fill.models.startswith(models)
    assert list(fill.prompt("def f(", "): pass").token_ids) == made.encode(alone, add_special_tokens=False)
    with_files = fill.prompt("def f(", "): pass", FILES)
    assert made.decode(with_files.token_ids, skip_special_tokens=False) == among_files
    assert not with_files.truncated


def test_the_prefix_alone_has_the_space_of_sentencepiece_before_it() -> None:
    special = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    made, fill = filler(llama2, *special)
    tokens = [made.id_to_token(one) for one in fill.prompt("hello", "hello").token_ids]
    assert tokens[:2] == ["<s>", "▁<PRE>"]
    middle = tokens.index("▁<SUF>")
    assert "".join(map(str, tokens[2:middle])) == "▁hello"
    assert "".join(map(str, tokens[middle + 1 :])) == "hello▁<MID>"


def test_a_text_that_begins_texts_stands_first_and_one_that_ends_them_nowhere() -> None:
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True, "add_eos_token": True}
    made, fill = filler(byte_level, *QWEN, config=config)
    tokens = [made.id_to_token(one) for one in fill.prompt("a", "b").token_ids]
    assert (tokens[0], tokens[-1]) == ("<|begin|>", "<|fim_middle|>")


def test_text_that_spells_a_token_stays_text() -> None:
    made, fill = filler(byte_level, *QWEN)
    ids = fill.prompt("x <|fim_suffix|> y", "<|fim_middle|>", (ContextFile("<|file_sep|>", "<|endoftext|>"),)).token_ids
    for name, count in (("<|fim_suffix|>", 1), ("<|fim_middle|>", 1), ("<|file_sep|>", 2), ("<|endoftext|>", 0)):
        assert ids.count(made.token_to_id(name)) == count, name


def test_the_format_and_the_ends_of_texts_stop_the_gap() -> None:
    made, fill = filler(byte_level, *QWEN, config={"eos_token": "<|end|>"})
    assert {made.token_to_id(name) for name in (*QWEN, "<|end|>")} == set(fill.stop_token_ids)


def test_a_prompt_that_is_too_long_loses_files_first_then_the_texts_outer_ends() -> None:
    made, fill = filler(byte_level, *QWEN)
    prefix, suffix = "a b c d e f g h", "1 2 3 4 5 6 7 8"
    whole = fill.prompt(prefix, suffix, FILES)
    alone = fill.prompt(prefix, suffix)
    for length in range(8, len(whole.token_ids) + 1):
        fitted = fill.prompt(prefix, suffix, FILES, max_tokens=length)
        assert len(fitted.token_ids) <= length
        assert fitted.truncated == (length < len(whole.token_ids))
        text = made.decode(fitted.token_ids, skip_special_tokens=False)
        if length >= len(alone.token_ids):
            assert text.endswith(f"{prefix}<|fim_suffix|>{suffix}<|fim_middle|>")
            assert "one" not in text or "two" in text  # the last file is the nearest
        else:
            before, after = text.removesuffix("<|fim_middle|>").split("<|fim_suffix|>")
            assert prefix.endswith(before.removeprefix("<|fim_prefix|>")) and suffix.startswith(after)
    assert fill.prompt(prefix, suffix, FILES, max_tokens=len(whole.token_ids)) == whole


def test_tokens_that_the_models_files_name_are_used_where_no_format_is_known() -> None:
    names = {"prefix": "<before>", "suffix": "<after>", "middle": "<here>"}
    config = {f"{name}_token": token for name, token in names.items()}
    for given in (config, {"fill_in_middle": names}):
        made, fill = filler(byte_level, *names.values(), config=given)
        text = made.decode(fill.prompt("x", "y").token_ids, skip_special_tokens=False)
        assert text == "<before>x<after>y<here>"
    assert special_tokens(config)["prefix_token"] == "<before>"


def test_a_model_without_such_tokens_has_none(tmp_path: Path) -> None:
    assert tokenizer(byte_level).fill_in_middle is None
    assert tokenizer(byte_level, *QWEN[:2]).fill_in_middle is None
    assert Tokenizer.load(write_folder(tmp_path, llama2())).fill_in_middle is None
