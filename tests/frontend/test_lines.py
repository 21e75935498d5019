"""Input lines as clients write them, good and bad; and the lines that answer them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.core.types.events import Finish, FinishedEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import InvalidSampling, SamplingParams, TokenLogprob
from inflight.core.types.timings import Timings
from inflight.frontend.fields import SAMPLING_FIELDS, PlacementError, UnknownField, with_fields
from inflight.frontend.lines import InputLine, LineError, logprob_json, output_line, parse_line
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.text import ChatTemplate, ChatTemplateError, Conversation, Tokenizer, TokenizerError

DEFAULTS = SamplingParams(temperature=0, max_tokens=512)


@pytest.fixture(scope="module")
def prompts(tiny: Path) -> PromptEncoder:
    return PromptEncoder(Tokenizer.load(tiny), ChatTemplate.load(tiny), seed=0)


def parse(prompts: PromptEncoder, line: Any) -> InputLine:
    return parse_line(line if isinstance(line, str) else json.dumps(line), DEFAULTS, prompts)


def test_three_kinds_of_prompt(prompts: PromptEncoder) -> None:
    text = parse(prompts, {"prompt": "hello"})
    assert text.prompt == "hello" and text.params == DEFAULTS and text.forced_output_tokens is None
    assert parse(prompts, {"prompt_token_ids": list(text.prompt_token_ids)}).prompt_token_ids == text.prompt_token_ids
    chat = parse(prompts, {"messages": [{"role": "user", "content": "hello"}]})
    assert chat.prompt == "<|begin|>user: hello\n<|begin|>assistant: "
    assert chat.prompt_token_ids == prompts.chat(Conversation([{"role": "user", "content": "hello"}])).token_ids


def test_a_line_overrides_the_defaults(prompts: PromptEncoder) -> None:
    line = parse(prompts, {"prompt": "x", "temperature": 0.5, "stop": "a", "logit_bias": {"5": 1}, "output_tokens": 3})
    assert (line.params.temperature, line.params.max_tokens, line.params.stop) == (0.5, None, ("a",))
    assert line.params.logit_bias == {5: 1.0} and line.forced_output_tokens == 3
    assert parse(prompts, {"prompt": "x", "cache_salt": "me"}).placement == {"cache_salt": "me"}


def test_a_line_says_where_it_belongs(prompts: PromptEncoder) -> None:
    placed = {"lane": "batch", "tenant": "a", "priority": -2, "slo": {"ttft_ms": 250, "itl_ms": None}}
    line = parse(prompts, {"prompt": "x", **placed})
    assert line.placement == {"lane": "batch", "tenant": "a", "priority": -2, "slo": SLO(ttft=0.25)}
    request = prompts.request("r", line.prompt_token_ids, line.params, 0.0, **line.placement)
    assert (request.lane, request.tenant, request.priority, request.slo.ttft) == ("batch", "a", -2, 0.25)
    assert parse(prompts, {"prompt": "x", **dict.fromkeys(placed)}).placement == {}


@pytest.mark.parametrize("names", [("session", "program"), ("session_id", "program_id")])
def test_a_line_names_its_session_and_its_program(prompts: PromptEncoder, names: tuple[str, str]) -> None:
    line = parse(prompts, {"prompt": "x", **dict(zip(names, ("s", "p"), strict=True))})
    assert line.placement == {"session": "s", "program": "p"}
    with pytest.raises(PlacementError, match=f"{names[1]} is 7; give text"):
        parse(prompts, {"prompt": "x", names[1]: 7})


def test_null_is_not_set(prompts: PromptEncoder) -> None:
    line = {"prompt": "x", "prompt_token_ids": None, "messages": None, "output_tokens": None, "cache_salt": None}
    given = parse(prompts, {**line, **dict.fromkeys(SAMPLING_FIELDS)})
    params = given.params
    assert (params.max_tokens, params.seed, params.logprobs, params.prompt_logprobs) == (None, None, None, None)
    assert with_fields(given.params, {"max_tokens": 512}) == DEFAULTS
    assert (given.forced_output_tokens, given.placement) == (None, {})


@pytest.mark.parametrize(
    ("line", "error", "sentence"),
    [
        ("not json", LineError, "not JSON: Expecting value at character 1"),
        ('{"prompt": "x"', LineError, "not JSON: Expecting ',' delimiter at character 15"),
        ("[" * 100_000, LineError, "nested too deeply"),
        ('{"prompt": "x", "seed": ' + "9" * 5000 + "}", LineError, "a number of thousands of digits"),
        ('{"prompt": "caf\udce9"}', LineError, "not UTF-8: byte 0xE9 at character 16; convert"),
        ('"text"', LineError, "a JSON string; write an object"),
        ("[1]", LineError, "a JSON array"),
        ("null", LineError, "a JSON null"),
        ("{}", LineError, "has no prompt; give exactly one of prompt, prompt_token_ids, messages"),
        ({"prompt": "x", "messages": []}, LineError, "has prompt, messages; give exactly one"),
        ({"prompt": None}, LineError, "has no prompt"),
        ({"prompt": 5}, LineError, "prompt is a JSON number; give text"),
        ({"prompt": ["a", "b"]}, LineError, "prompt is a JSON array"),
        ({"prompt_token_ids": "abc"}, LineError, "prompt_token_ids is a JSON string; give a list"),
        ({"prompt_token_ids": []}, PromptError, "not empty"),
        ({"prompt_token_ids": [1.0]}, PromptError, "hold 1.0; give whole numbers"),
        ('{"prompt_token_ids": [NaN]}', PromptError, "hold nan; give whole numbers"),
        ({"prompt_token_ids": [None]}, PromptError, "hold None"),
        ({"prompt": ""}, PromptError, "0 tokens"),
        ({"prompt": "\ud800"}, TokenizerError, "half of a surrogate pair"),
        ({"messages": "hello"}, ChatTemplateError, ""),
        ({"messages": []}, ChatTemplateError, ""),
        ({"prompt": "x", "max_token": 3}, UnknownField, "'max_token' is unknown. Did you mean 'max_tokens'"),
        ({"prompt": "x", "zzz": 3}, UnknownField, "'zzz' is unknown. Known are prompt, "),
        ({"prompt": "x", "max_tokens": -5}, InvalidSampling, "max_tokens is -5"),
        ({"prompt": "x", "max_tokens": 2.0}, InvalidSampling, "max_tokens is 2.0; give a whole number"),
        ({"prompt": "x", "max_tokens": "9"}, InvalidSampling, "max_tokens is '9'"),
        ({"prompt": "x", "max_tokens": True}, InvalidSampling, "max_tokens is True"),
        ('{"prompt": "x", "temperature": NaN}', InvalidSampling, "temperature is nan"),
        ('{"prompt": "x", "temperature": Infinity}', InvalidSampling, "temperature is inf"),
        ('{"prompt": "x", "temperature": 1e999}', InvalidSampling, "temperature is inf"),
        ('{"prompt": "x", "temperature": ' + "9" * 400 + "}", InvalidSampling, "temperature is 999"),
        ('{"prompt": "x", "top_p": -Infinity}', InvalidSampling, "top_p is -inf"),
        ('{"prompt": "x", "logit_bias": {"1": NaN}}', InvalidSampling, "logit_bias of token 1 is nan"),
        ({"prompt": "x", "logit_bias": {"one": 1}}, InvalidSampling, "names the token 'one'"),
        ({"prompt": "x", "logit_bias": [1]}, InvalidSampling, "give an object"),
        ({"prompt": "x", "stop": ["a", 3]}, InvalidSampling, "stop holds 3"),
        ({"prompt": "x", "stop": 5}, InvalidSampling, "stop is 5"),
        ({"prompt": "x", "stop_token_ids": 5}, InvalidSampling, "stop_token_ids is 5"),
        ({"prompt": "x", "stop_token_ids": [-1]}, InvalidSampling, "stop_token_ids is -1"),
        ({"prompt": "x", "seed": 2**64}, InvalidSampling, "seed is"),
        ({"prompt": "x", "n": 0}, InvalidSampling, "n is 0"),
        ({"prompt": "x", "ignore_eos": "yes"}, InvalidSampling, "ignore_eos is 'yes'; give true or false"),
        ({"prompt": "x", "output_tokens": 0}, LineError, "output_tokens is 0"),
        ({"prompt": "x", "output_tokens": 2.5}, LineError, "output_tokens is 2.5"),
        ({"prompt": "x", "output_tokens": 9, "max_tokens": 8}, LineError, "output_tokens is 9, but max_tokens is 8"),
        ({"prompt": "x", "cache_salt": 5}, PlacementError, "cache_salt is 5; give text"),
        ({"prompt": "x", "lane": ["batch"]}, PlacementError, "lane is ['batch']; give text"),
        ({"prompt": "x", "tenant": 7}, PlacementError, "tenant is 7; give text"),
        ({"prompt": "x", "priority": "high"}, PlacementError, "priority is 'high'; give a whole number"),
        ({"prompt": "x", "priority": True}, PlacementError, "priority is True; give a whole number"),
        ({"prompt": "x", "priority": 10**12}, PlacementError, "priority is 1000000000000; give a whole number"),
        (
            {"prompt": "x", "slo": 5},
            PlacementError,
            'slo is 5; give an object with any of "ttft_ms", "itl_ms" and "tpot_ms"',
        ),
        ({"prompt": "x", "slo": {"ttft": 5}}, PlacementError, "give an object with any of"),
        ({"prompt": "x", "slo": {"ttft_ms": 0}}, PlacementError, "slo.ttft_ms is 0; give milliseconds above 0"),
        (
            {"prompt": "x", "slo": {"itl_ms": 1e16}},
            PlacementError,
            "slo.itl_ms is 1e+16; give milliseconds above 0, up",
        ),
        ({"prompt": "x", "slo": {"itl_ms": "9"}}, PlacementError, "slo.itl_ms is '9'; give milliseconds"),
        ({"prompt": "x", "slo": {"itl_ms": True}}, PlacementError, "slo.itl_ms is True; give milliseconds"),
        ('{"prompt": "x", "slo": {"itl_ms": NaN}}', PlacementError, "slo.itl_ms is nan; give milliseconds"),
    ],
)
def test_bad_lines(prompts: PromptEncoder, line: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as raised:
        parse(prompts, line)
    assert sentence in str(raised.value)
    assert isinstance(raised.value, ValueError) and type(raised.value).__module__.startswith("inflight.")
    assert "\n" not in str(raised.value)


def test_a_model_without_text(prompts: PromptEncoder) -> None:
    bare = PromptEncoder(None, None, 0)
    assert not bare.can_chat and prompts.can_chat
    assert parse_line('{"prompt_token_ids": [1]}', DEFAULTS, bare).prompt is None
    for line in ('{"prompt": "x"}', '{"messages": [{"role": "user", "content": "x"}]}'):
        with pytest.raises(PromptError, match=r"no tokenizer|no chat template"):
            parse_line(line, DEFAULTS, bare)


def test_output_lines_hold_what_was_asked() -> None:
    collector = OutputCollector(Request(request_id="0", prompt_token_ids=(1, 2), params=SamplingParams(n=2)), None)
    entry = TokenLogprob(7, -0.5, ((7, -0.5), (9, -1.5)))
    collector.take(TokensEvent("0", 0, (7,), (entry,), None))
    collector.take(TokensEvent("0", 1, (8,), None, Finish("stop", 8)))
    collector.take(TokensEvent("0", 0, (9,), (entry,), Finish("length", detail="A sentence.")))
    collector.take(FinishedEvent("0", (Finish("length"), Finish("stop", 8)), timings()))
    line = json.loads(json.dumps(output_line(4, collector.output())))
    assert list(line)[:4] == ["index", "text", "token_ids", "finish_reason"]
    assert (line["index"], line["token_ids"], line["finish_reason"], line["detail"]) == (
        4,
        [7, 9],
        "length",
        "A sentence.",
    )
    assert line["logprobs"] == [{"token_id": 7, "logprob": -0.5, "top": [[7, -0.5], [9, -1.5]]}] * 2
    assert (line["prompt_tokens"], line["output_tokens"], line["cached_tokens"]) == (2, 3, 1)
    assert line["samples"][1] == {"text": "", "token_ids": [8], "finish_reason": "stop", "stop_reason": 8}
    assert line["timings"]["lane"] == "interactive"


def test_output_lines_hold_the_scores_of_the_prompt() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    collector = OutputCollector(Request(request_id="0", prompt_token_ids=(1, 2, 3), params=params), None)
    collector.take(PromptScoredEvent("0", (TokenLogprob(2, -0.5, ((2, -0.5),)),)))
    collector.take(PromptScoredEvent("0", (TokenLogprob(3, -2.5, ((9, -0.1),)),)))
    collector.take(FinishedEvent("0", (Finish("length"),), timings()))
    line = json.loads(json.dumps(output_line(0, collector.output())))
    assert line["prompt_logprobs"] == [
        None,
        {"token_id": 2, "logprob": -0.5, "top": [[2, -0.5]]},
        {"token_id": 3, "logprob": -2.5, "top": [[9, -0.1]]},
    ]
    assert (line["token_ids"], line["finish_reason"], line["output_tokens"]) == ([], "length", 0)


def timings() -> Timings:
    return Timings(1, 2, 3, 0, 0, 6, 2.5, 1, 0, 0, None, None, "interactive")


def test_a_logprob_without_a_number_is_the_least() -> None:
    entry = TokenLogprob(3, float("-inf"), ((4, -0.5), (5, float("nan"))))
    assert logprob_json(entry) == {"token_id": 3, "logprob": -9999.0, "top": [[4, -0.5], [5, -9999.0]]}
