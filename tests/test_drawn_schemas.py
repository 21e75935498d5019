"""Schemas drawn at random, on random weights at a high temperature, where nothing but the masks makes it right.

The tokens are those of the built-in model's tokenizer. What was cut off is shown to be a beginning by a witness: it is
gone on with until it ends, and what comes of that is valid.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from execution.grammars.schemas import Schema, drawn_schema

from inflight import LLM, SamplingParams, StructuredOutputsParams
from inflight.build import BUILT_IN
from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.text import Tokenizer

END_SHARE = 0.95
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
COUNTS = [100, pytest.param(2000, marks=pytest.mark.wide)]


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("noise")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN / name, folder)
    config = json.loads((BUILT_IN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SIZES | HEADS))
    with LLM(str(folder), load_format="dummy", threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledGrammars]:
    """A seed of its own, beside the engine's."""
    made = vocabulary()
    grammars = CompiledGrammars(lambda: made)
    yield grammars
    grammars.close()


def vocabulary() -> Vocabulary:
    text = (BUILT_IN / "tokenizer.json").read_text()
    config = json.loads((BUILT_IN / "config.json").read_text())
    ends = config["eos_token_id"]
    size = config["vocab_size"]
    return Vocabulary(text, size, size, tuple(ends) if isinstance(ends, list) else (ends,))


def said(llm: LLM, schemas: list[Schema], most: int) -> Iterator[tuple[Schema, list[int], str, str | None]]:
    params = [
        SamplingParams(temperature=1.5, max_tokens=most, seed=n, structured_outputs=StructuredOutputsParams(json=one))
        for n, one in enumerate(schemas)
    ]
    for schema, output in zip(schemas, llm.generate(["x"] * len(schemas), params), strict=True):
        (sample,) = output.outputs
        yield schema, sample.token_ids, sample.text, sample.finish_reason


def gone_on(compiled: CompiledGrammars, schema: Schema, token_ids: list[int]) -> list[int]:
    """The same tokens and more behind them, up to an end; tokens that close something come first."""
    tokenizer, chance = Tokenizer.load(BUILT_IN), random.Random(0)
    closing = [tokenizer.encode(text)[0] for text in '"}],0-:{']
    matcher, more = compiled.outcome(Grammar("json_schema", json.dumps(schema))).matcher.deep_copy(), list(token_ids)
    assert matcher.consume_tokens(token_ids)
    for _ in range(1000):
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        if compiled.end_token_ids & set(allowed.tolist()):
            return more
        preferred = [one for one in closing if one in allowed] if chance.random() < 0.7 else []
        more.append(preferred[0] if preferred else int(chance.choice(allowed)))
        assert matcher.consume_token(more[-1])
    raise AssertionError(f"no end behind {tokenizer.decode(more)[:300]}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", COUNTS)
def test_what_ends_by_itself_is_valid_and_nearly_all_does(noise: LLM, compiled: CompiledGrammars, count: int) -> None:
    chance = random.Random(f"{count} schemas")
    ended = 0
    for schema, token_ids, text, reason in said(noise, [drawn_schema(chance) for _ in range(count)], 700):
        if reason == "stop":
            ended += 1
            check_valid(text, schema)
        else:
            assert reason == "length", (schema, text)
            check_beginning(compiled, schema, token_ids)
    assert ended >= END_SHARE * count


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.wide)])
def test_what_was_cut_off_is_the_beginning_of_something_valid(
    noise: LLM, compiled: CompiledGrammars, count: int
) -> None:
    chance, cut = random.Random(f"{count} cuts"), 0
    for schema, token_ids, _, reason in said(noise, [drawn_schema(chance) for _ in range(count)], 9):
        if reason == "length":
            cut += 1
            check_beginning(compiled, schema, token_ids)
    assert cut >= count // 4


def check_beginning(compiled: CompiledGrammars, schema: Schema, token_ids: list[int]) -> None:
    tokenizer = Tokenizer.load(BUILT_IN)
    whole = gone_on(compiled, schema, token_ids)
    assert whole[: len(token_ids)] == token_ids
    check_valid(tokenizer.decode(whole), schema)


def check_valid(text: str, schema: Schema) -> None:
    """Formats count, too."""
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
