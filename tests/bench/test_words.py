"""Texts have exactly as many tokens as asked, for every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from text import builders

from inflight.bench.client_types import BenchError
from inflight.bench.counting import LocalCounter
from inflight.bench.prompts import corrected, learn_words, write

from .scripted import words

KINDS = [builders.byte_level, builders.llama2, builders.gemma, builders.metaspace, builders.wordpiece]


def counter(folder: Path, kind: Callable[[], object]) -> LocalCounter:
    kind().save(str(folder / "tokenizer.json"))  # type: ignore[attr-defined]
    return LocalCounter(folder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("tokens", [8, 23, 24, 25, 100, 513])
def test_exact_for_every_kind_of_tokenizer(tmp_path, kind, tokens):
    count = counter(tmp_path, kind).text
    vocabulary = learn_words(count)
    for seed in range(3):
        text = write(vocabulary, tokens - vocabulary.around, Random(seed))
        assert count(corrected(text, tokens, count)) == tokens


def test_exact_behind_a_prefix(tmp_path):
    count = counter(tmp_path, builders.byte_level).text
    vocabulary = learn_words(count)
    before = "What came before."
    text = corrected(" " + write(vocabulary, 30, Random(1)), count(before) + 41, count, before)
    assert count(before + text) == count(before) + 41


def test_words_that_cost_one_token_need_no_correction():
    vocabulary = learn_words(words)
    assert vocabulary.around == 1
    assert {cost for _, cost in vocabulary.units} == {1}
    assert words(write(vocabulary, 77, Random(0))) == 78


def test_contents_differ_by_seed_and_repeat_with_it():
    vocabulary = learn_words(words)
    one, same, other = (write(vocabulary, 20, Random(seed)) for seed in ("a", "a", "b"))
    assert one == same != other


def test_a_tokenizer_that_cannot_be_hit_is_refused():
    with pytest.raises(BenchError, match="No text of exactly 7 tokens"):
        corrected("a b", 7, lambda text: 2 * len(text.split()))


def test_a_tokenizer_without_stable_words_is_refused():
    with pytest.raises(BenchError, match="token ids"):
        learn_words(lambda text: 5)
