"""Whole engines whose outputs follow grammars: what they say is what was asked for, in any company."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from execution.grammars.schemas import drawn_schema
from execution.threaded import Threaded
from models import write_model
from text.builders import byte_level

from inflight import LLM, AsyncEngine, SamplingParams, StructuredOutputsParams
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.core.speculation.speculation import ForcedDrafts
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import Grammar, InvalidSampling
from inflight.core.types.sampling import SamplingParams as EngineParams
from inflight.execution import computing
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.definitions import Definitions
from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.offline import Offline
from inflight.frontend.parsers.parser_choice import ParserNames, Tool, ToolChoice
from inflight.frontend.parsers.registry import ChosenParsers
from inflight.records.drafts import DraftCounts
from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay
from inflight.text import Tokenizer

WILD: dict[str, Any] = {"temperature": 1.5, "max_tokens": 220}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}
SHAPES: dict[str, dict[str, Any]] = {
    "one at a time": {"max_num_seqs": 1},
    "crumbs": {"max_num_seqs": 5, "max_num_batched_tokens": 7},
    "little memory": {"num_blocks": 14, "watermark": 0.0},
    "swap": {"num_blocks": 14, "watermark": 0.0, "preemption": "swap", "swap_space": 0.001},
    "drafts": {"speculation": "suffix"},
    "static": {"strategy": "static", "batch_size": 5},
}
Said = dict[str, list[tuple[list[int], str | None]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It ends its answers by a token, which the tiny one of other tests lacks."""
    folder = write_model(tmp_path_factory.mktemp("ending"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 361}))
    return folder


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), threads=1) as llm:
        yield llm


def mixed(seed: int, count: int = 16) -> list[Request]:
    """Some free, most under grammars, some of which begin behind some reasoning, or may."""
    chance, made = random.Random(seed), []
    for n in range(count):
        schema = json.dumps(drawn_schema(chance))
        kinds = [
            None,
            Grammar("json_schema", schema),
            Grammar("json_schema", schema, after_token_ids=(40, 41), max_tokens_before=chance.randrange(12)),
            Grammar("json_schema", schema, (40, 41), chance.randrange(12), opening_token_ids=(60, 61)),
            Grammar("regex", "(ab|cd){2,12}[0-9]{3}"),
            Grammar("choice", '["yes", "no", "perhaps"]'),
        ]
        params = EngineParams(
            temperature=chance.choice([0.0, 1.5]),
            max_tokens=chance.choice([20, 60]),
            n=chance.choice([1, 1, 2]),
            logprobs=chance.choice([None, 2]),
            repetition_penalty=chance.choice([1.0, 1.3]),
            min_tokens=chance.choice([0, 1]),
        )
        prompt = tuple(chance.randrange(300) for _ in range(chance.randrange(1, 40)))
        made.append(
            Request(request_id=str(n), prompt_token_ids=prompt, params=params, seed=n, grammar=chance.choice(kinds))
        )
    return made


def said(folder: Path, requests: Sequence[Request], **shape: Any) -> Said:
    scheduling = SchedulingSettings.of(**{name: shape.pop(name) for name in tuple(shape) if name in SCHEDULING_NAMES})
    engine = build_engine(EngineSettings(model=str(folder), threads=1, **shape), scheduling)
    offline = Offline(engine.loop, engine.tokenizer)
    collectors = [offline.add(one) for one in requests]
    for _ in offline.run():
        pass
    engine.loop.close()
    outputs = [one.output() for one in collectors]
    return {one.request_id: [(out.token_ids, out.finish_reason) for out in one.outputs] for one in outputs}


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[int, Said]:
    """Return the text of each request in an engine of its own company, by seed."""
    return {seed: said(model, mixed(seed)) for seed in (1, 2)}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_do_not_depend_on_the_company(model: Path, alone: dict[int, Said], shape: str, seed: int) -> None:
    assert said(model, mixed(seed), **SHAPES[shape]) == alone[seed]


def test_two_steps_in_flight_say_the_same(model: Path, alone: dict[int, Said], monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Threaded(ReferenceBackend("float32"))
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: ReferenceBackend("float32"))
    want = said(model, mixed(2, 9))
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: reference)
    assert said(model, mixed(2, 9)) == want
    reference.end()


FORM = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"first name": {"enum": ["Ada", "Grace"]}, "the year of birth": {"enum": [1815, 1906]}},
            "required": ["first name", "the year of birth"],
            "additionalProperties": False,
        }
    ),
)


def recorded(model: Path, path: Path, speculation: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the text of requests under a form, with log-probabilities, and the record of it."""
    requests = [
        Request(
            request_id=str(seed),
            prompt_token_ids=tuple(range(1, 3 + 4 * seed)),
            params=EngineParams(temperature=1.5, max_tokens=70, logprobs=2, repetition_penalty=1.1),
            seed=seed,
            grammar=None if seed == 3 else FORM,
        )
        for seed in range(6)
    ]
    settings, scheduling = (
        EngineSettings(model=str(model), threads=1, max_num_seqs=4),
        SchedulingSettings(speculation=speculation),
    )
    engine = build_engine(settings, scheduling, record=path)
    offline = Offline(engine.loop, engine.tokenizer)
    collectors = [offline.add(one) for one in requests]
    for _ in offline.run():
        pass
    engine.loop.close()
    outputs = [one.output() for one in collectors]
    said = {one.request_id: (one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs}
    return said, list(read_records(path))


@pytest.mark.parametrize("speculation", ["off", "suffix"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_grammar_forces_is_drafted_and_changes_nothing_but_the_steps(
    model: Path, depth: int, speculation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside drafts that may be wrong, too."""
    reference = Threaded(ReferenceBackend("float32")) if depth == 2 else ReferenceBackend("float32")
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: reference)
    drafted, records = recorded(model, tmp_path / "drafted.jsonl", speculation)
    monkeypatch.setattr(ForcedDrafts, "force", lambda *given: None)
    plain, before = recorded(model, tmp_path / "plain.jsonl", "off")
    assert drafted == plain
    monkeypatch.undo()
    steps = of_kind(records, "step")
    counts = DraftCounts.of(steps)
    assert counts.accepted_tokens > 50
    assert speculation != "off" or counts.tokens == counts.accepted_tokens
    assert DraftCounts.of(of_kind(before, "step")).tokens == 0
    rows = [sum(len(one.plan.chunks) for one in of_kind(some, "step")) for some in (records, before)]
    assert rows[0] < 0.8 * rows[1]
    assert depth == 1 or any(one.plan.held_back for one in steps)
    assert replay(records)[1].difference is None
    if isinstance(reference, Threaded):
        reference.end()


def test_kernels_of_torch_follow_them_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "torch")
    want = said(model, mixed(3, 8))
    assert said(model, mixed(3, 8), **SHAPES["crumbs"]) == want
    assert said(model, mixed(3, 8), **SHAPES["drafts"]) == want
    two_in_flight = TorchBackend("bfloat16", torch.device("cpu"), Definitions(), depth=2)
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: two_in_flight)
    assert said(model, mixed(3, 8)) == want, "two steps in flight, as on a GPU"
    check(mixed(3, 8), want)


def test_what_ends_by_itself_is_what_was_asked_for(alone: dict[int, Said]) -> None:
    for seed, result in alone.items():
        check(mixed(seed), result)


def check(requests: Sequence[Request], result: Said) -> None:
    tokenizer, checked = Tokenizer(byte_level()), 0
    for request in requests:
        grammar = request.grammar
        for token_ids, reason in result[request.request_id]:
            if grammar is None or reason != "stop":
                continue
            end, opening = 0, grammar.opening_token_ids
            if grammar.after_token_ids and tuple(token_ids[: len(opening)]) == opening:
                end = next(at for at in range(2, len(token_ids)) if tuple(token_ids[at - 2 : at]) == (40, 41))
            assert grammar.max_tokens_before is None or end <= max(grammar.max_tokens_before, len(opening)) + 2
            text = tokenizer.decode(token_ids[end:])
            if grammar.kind == "json_schema":
                jsonschema.validate(json.loads(text), json.loads(grammar.source))
            elif grammar.kind == "choice":
                assert text in json.loads(grammar.source)
            else:
                assert re.fullmatch(grammar.source, text)
            checked += 1
    assert checked


TOOL = Tool("f", json.dumps(SCHEMA | {"additionalProperties": False}))


@pytest.mark.parametrize("shape", ["crumbs", "little memory", "drafts"])
def test_forced_calls_come_whether_a_model_reasons_before_them_or_not(model: Path, shape: str) -> None:
    """The mark of reasoning is a token of its own, or spelled by several, and then begins as that of a call does."""
    tokenizer, parsers = Tokenizer(byte_level()), ChosenParsers(ParserNames("hermes", "qwen3"))
    calls = parsers.grammar_of_calls((TOOL,), ToolChoice("required", parallel=False), None)
    assert calls is not None and parsers.reasoning_ends is not None
    begin, end = (tuple(tokenizer.encode(mark)) for mark in parsers.reasoning_ends)
    spelled = (*tokenizer.encode("<"), *tokenizer.encode("think>"))
    assert len(begin) == 1 and len(spelled) > 2
    params = EngineParams(temperature=1.5, max_tokens=120)
    requests = [
        Request(
            request_id=str(seed),
            prompt_token_ids=(seed,),
            params=params,
            seed=seed,
            grammar=replace(
                calls, after_token_ids=end, max_tokens_before=seed, opening_token_ids=spelled if seed % 2 else begin
            ),
        )
        for seed in range(24)
    ]
    result, thoughtful, ended = said(model, requests, **SHAPES[shape]), 0, 0
    for request in requests:
        ((token_ids, reason),) = result[request.request_id]
        if reason != "stop":
            continue
        answer = ParsedAnswer(parsers.parser((TOOL,), in_reasoning=False))
        ended += 1
        answer.finish(tokenizer.decode(token_ids[:-1], skip_special_tokens=False))
        assert answer.calls and not answer.content.strip()
        for call in answer.calls:
            jsonschema.validate(json.loads(call.arguments), json.loads(TOOL.parameters))
        thoughtful += bool(answer.reasoning)
    assert 0 < thoughtful < ended


def test_a_grammar_and_settings_that_leave_nothing_end_their_own_request(llm: LLM) -> None:
    bound = SamplingParams(
        max_tokens=9, allowed_token_ids=(70, 71), structured_outputs=StructuredOutputsParams(regex="[0-9]{4}")
    )
    failed, free = llm.generate(["x", "x"], [bound, SamplingParams(max_tokens=5, ignore_eos=True)])
    assert failed.outputs[0].finish_reason == "error"
    assert "grammar" in str(failed.outputs[0].detail)
    assert len(free.outputs[0].token_ids) == 5


def test_an_answer_that_is_whole_and_not_valid_is_an_error_that_names_the_keyword(llm: LLM) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    params = [
        SamplingParams(temperature=1.5, max_tokens=200, seed=n, structured_outputs=StructuredOutputsParams(json=schema))
        for n in range(24)
    ]
    reasons = set()
    for output in llm.generate(["x"] * len(params), params):
        (sample,) = output.outputs
        reasons.add(sample.finish_reason)
        if sample.finish_reason == "stop":
            assert json.loads(sample.text) in ([True, False], [False, True])
        else:
            assert sample.finish_reason == "error" and "uniqueItems" in str(sample.detail)
    assert reasons == {"stop", "error"}


def test_logit_bias_chooses_among_what_may_come(llm: LLM) -> None:
    (plain,) = llm.generate(
        "x", SamplingParams(temperature=0, structured_outputs=StructuredOutputsParams(regex="[ab]"))
    )
    token_id = plain.outputs[0].token_ids[0]
    other = StructuredOutputsParams(regex="[ab]")
    (turned,) = llm.generate("x", SamplingParams(temperature=0, logit_bias={token_id: -100}, structured_outputs=other))
    assert {plain.outputs[0].text, turned.outputs[0].text} == {"a", "b"}


def test_every_form_of_the_python_face(llm: LLM) -> None:
    forms: list[tuple[StructuredOutputsParams, str]] = [
        (StructuredOutputsParams(regex="x[0-9]{2}"), r"x\d\d"),
        (StructuredOutputsParams(choice=["yes", "no"]), "yes|no"),
        (StructuredOutputsParams(grammar='start: "a" ("b" | "c")'), "a[bc]"),
        (StructuredOutputsParams(grammar='root ::= "a" [0-9]'), "a[0-9]"),
    ]
    params = [SamplingParams(**WILD, structured_outputs=form) for form, _ in forms]
    for (_, pattern), output in zip(forms, llm.generate(["x"] * len(forms), params), strict=True):
        assert re.fullmatch(pattern, output.outputs[0].text)
    (any_object,) = llm.generate(
        "x", SamplingParams(**WILD, structured_outputs=StructuredOutputsParams(json_object=True))
    )
    assert any_object.outputs[0].text.startswith("{")


def test_what_is_wrong_is_said_before_anything_is_computed(llm: LLM) -> None:
    with pytest.raises(InvalidSampling, match="regex, choice"):
        StructuredOutputsParams(regex="a", choice=["b"])
    with pytest.raises(InvalidSampling, match="nothing"):
        StructuredOutputsParams()
    with pytest.raises(RequestRefused, match="example"):
        llm.generate(
            "x", SamplingParams(structured_outputs=StructuredOutputsParams(json={"$ref": "http://example.org"}))
        )


async def _several(model: Path) -> tuple[list[str], list[BaseException]]:
    texts: list[str] = []
    faults: list[BaseException] = []
    async with AsyncEngine(str(model), threads=1) as engine:
        for form in ({"choice": ["only"]}, {"regex": "[a"}, {"json": SCHEMA}):
            params = SamplingParams(**WILD, structured_outputs=StructuredOutputsParams(**form))
            try:
                async for output in engine.generate("x", params):
                    last = output
            except RequestRefused as refusal:
                faults.append(refusal)
            else:
                texts.append(last.outputs[0].text)
        left = engine.generate("x", replace(params, structured_outputs=StructuredOutputsParams(regex="[xy]{90}z")))
        await anext(left)
        await left.aclose()
        snapshot = await engine.snapshot()
        assert snapshot.grammars is not None and snapshot.grammars.refused == 1
    return texts, faults


def test_streams_wait_for_their_grammars(model: Path) -> None:
    texts, faults = asyncio.run(_several(model))
    assert texts[0] == "only"
    jsonschema.validate(json.loads(texts[1]), SCHEMA)
    assert len(faults) == 1 and "regular expression" in str(faults[0])
