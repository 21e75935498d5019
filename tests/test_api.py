"""The Python face, used as vLLM's users use it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_model

import inflight
from inflight import LLM, AsyncEngine, RequestOutput, SamplingParams
from inflight.config.setting import SettingsError
from inflight.core.types.request import RequestRefused
from inflight.engine.event_stream import EngineStopped
from inflight.frontend.prompts import PromptError
from inflight.records.schema import header_of, of_kind, read_records
from inflight.text import ChatTemplateError, TokenizerError

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TALK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), threads=1) as llm:
        yield llm


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[one.token_ids for one in output.outputs] for output in outputs]


# -- prompts ------------------------------------------------------------------------------------------------------
def test_prompts_in_every_form(llm: LLM) -> None:
    (text,) = llm.generate("hello world", GREEDY)
    ids = text.prompt_token_ids
    assert len(ids) > 1 and text.prompt == "hello world" and text.finished
    forms: list[Any] = [
        ["hello world"],
        ids,
        tuple(ids),
        [ids],
        [np.array(ids)[n] for n in range(len(ids))],
        {"prompt": "hello world"},
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": ids}],
    ]
    for form in forms:
        (output,) = llm.generate(form, GREEDY)
        assert output.outputs == text.outputs, form
        assert output.prompt_token_ids == ids
    assert [len(output.outputs) for output in llm.generate(["hello", ids, {"prompt": "two"}], GREEDY)] == [1, 1, 1]
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize("after", [0.0, 0.01, 0.03])
def test_after_ctrl_c_the_next_call_is_answered(llm: LLM, after: float) -> None:
    """A real signal, at a random moment."""
    (expected,) = llm.generate("hello world", GREEDY)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            llm.generate(["one", "two", "three"], long)
    timer.join()
    signal.signal(signal.SIGINT, before)
    (output,) = llm.generate("hello world", GREEDY)
    assert output.outputs == expected.outputs
    stats = llm._engine.loop.stats()
    assert (stats.running, stats.waiting, stats.kv.held_blocks) == (0, 0, 0)


def test_outputs_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [9, 1, 5, 3, 7]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate([f"number {length}" for length in lengths], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert len({output.request_id for output in outputs}) == 5


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ("", "0 tokens"),
        ([[]], "not empty"),
        ([[1, 2.0]], "hold 2.0; give whole numbers"),
        ([[1, True]], "hold True; give whole numbers"),
        ({"text": "x"}, r"keys \['text'\]; give 'prompt'"),
        (["good", None], "The prompt is None"),
        (b"bytes", "The prompt is"),
    ],
)
def test_prompts_that_are_none(llm: LLM, prompts: Any, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        llm.generate(prompts)


def test_refused_before_anything_is_computed(llm: LLM) -> None:
    for wrong, sentence in (
        ([5] * 300, "maximum context length is 256 tokens.* has 300 tokens"),
        ([5, 384], "token id 384, but the vocabulary has 384 tokens"),
        ([5, -1], "token id -1"),
        ([5, 10**30], "vocabulary has 384"),
    ):
        with pytest.raises(RequestRefused, match=sentence):
            llm.generate([[1, 2, 3], wrong], GREEDY)
    for params in (SamplingParams(logit_bias={384: 1.0}), SamplingParams(stop_token_ids=[2, 10**20])):
        with pytest.raises(RequestRefused, match="but the vocabulary has 384 tokens"):
            llm.generate("x", params)
    with pytest.raises(PromptError, match="2 prompts, but 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(PromptError, match="2 prompts, but 3 session_id"):
        llm.generate(["a", "b"], GREEDY, session_id=("x", "y", "z"))
    with pytest.raises(PromptError, match="Among session_id is 7; each must be a str"):
        llm.chat(TALK, GREEDY, session_id=[7])  # type: ignore[list-item]
    assert len(llm.generate("still alive", GREEDY)) == 1


def test_requests_are_turns_of_the_session_that_is_named(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with LLM(str(tiny), threads=1, record=path, kv_eviction="sessions") as llm:
        llm.generate(["a", "b"], GREEDY, session_id="one")
        llm.generate(["c", "d"], GREEDY, session_id=["two", "three"])
        llm.chat(TALK, GREEDY, session_id="four")
        llm.generate("e", GREEDY)

    async def asked() -> None:
        async with AsyncEngine(str(tiny), threads=1, record=tmp_path / "async.jsonl") as engine:
            async for _ in engine.generate("f", GREEDY, session_id="five"):
                pass

    asyncio.run(asked())
    lines = [*read_records(path), *read_records(tmp_path / "async.jsonl")]
    named = [one.request.session or None for one in of_kind(lines, "request")]
    assert sorted(map(str, named)) == sorted(["one", "one", "two", "three", "four", "None", "five"])


# -- chat ---------------------------------------------------------------------------------------------------------
def test_one_conversation_or_several(llm: LLM) -> None:
    (one,) = llm.chat(TALK, GREEDY)
    assert one.prompt == "<|begin|>user: hello\n<|begin|>assistant: "
    both = llm.chat([TALK, [*TALK, {"role": "assistant", "content": "yes"}, TALK[0]]], GREEDY)
    assert both[0].outputs == one.outputs
    assert len(both[1].prompt_token_ids) > len(one.prompt_token_ids)
    assert llm.chat([], GREEDY) == []
    (free,) = llm.chat(TALK)
    assert free.outputs[0].finish_reason in ("stop", "length")
    assert len(free.outputs[0].token_ids) > 16 or free.outputs[0].finish_reason == "stop"


def test_messages_that_are_none(llm: LLM) -> None:
    with pytest.raises(ChatTemplateError):
        llm.chat([{"content": "no role"}])
    with pytest.raises(TokenizerError, match="surrogate"):
        llm.chat([{"role": "user", "content": "\ud83d"}])


# -- settings -----------------------------------------------------------------------------------------------------
def test_seeds_repeat_and_samples_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=11, n=4, max_tokens=12, ignore_eos=True)
    (first,), (second,) = llm.generate("hello", params), llm.generate("hello", params)
    assert first.outputs == second.outputs
    assert [one.index for one in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in first.outputs}) == 4
    other = SamplingParams(temperature=1.5, seed=12, n=4, max_tokens=12, ignore_eos=True)
    assert tokens(llm.generate("hello", other)) != tokens([first])


def test_the_engines_seed_makes_whole_runs_repeat(tiny: Path) -> None:
    def run(seed: int) -> list[list[list[int]]]:
        with LLM(str(tiny), threads=1, seed=seed) as llm:
            return tokens(llm.generate(["one", "one", "two"], SamplingParams(temperature=1.0)))

    first = run(1)
    assert first == run(1) != run(2)
    assert first[0] != first[1], "each request draws from a stream of its own"


def test_stop_strings_that_span_tokens(llm: LLM) -> None:
    (whole,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    text, ids = whole.outputs[0].text, whole.outputs[0].token_ids
    assert len(text) > 20
    for begin in range(0, 18, 3):
        stop = text[begin : begin + 4]
        if "\ufffd" in stop:
            continue
        (cut,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop))
        one = cut.outputs[0]
        assert (one.finish_reason, one.stop_reason) == ("stop", stop)
        assert one.text == text[: text.index(stop)]
        assert one.token_ids == ids[: len(one.token_ids)]
        kept = SamplingParams(
            temperature=0, max_tokens=40, ignore_eos=True, stop=[stop, "never"], include_stop_str_in_output=True
        )
        (with_stop,) = llm.generate("hello", kept)
        assert with_stop.outputs[0].text == text[: text.index(stop)] + stop


def test_how_an_output_ends(llm: LLM) -> None:
    end = 361  # <|end|>
    (ended,) = llm.generate("x", SamplingParams(logit_bias={end: 100}, max_tokens=9))
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", None)
    assert (ended.outputs[0].token_ids, ended.outputs[0].text) == ([end], "")
    (stopped,) = llm.generate("x", SamplingParams(logit_bias={70: 100}, stop_token_ids=[70], max_tokens=9))
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", 70)
    (full,) = llm.generate("x", GREEDY)
    assert (full.outputs[0].finish_reason, len(full.outputs[0].token_ids)) == ("length", 8)
    (longest,) = llm.generate([[9] * 250], SamplingParams(max_tokens=None, ignore_eos=True))
    assert (longest.outputs[0].finish_reason, len(longest.outputs[0].token_ids)) == ("length", 6)
    (default,) = llm.generate("x")
    assert len(default.outputs[0].token_ids) <= 16


def test_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=5, logprobs=2, ignore_eos=True)
    one = llm.generate("hello", params)[0].outputs[0]
    assert one.logprobs is not None and len(one.logprobs) == 5
    for token_id, entry in zip(one.token_ids, one.logprobs, strict=True):
        assert token_id in entry and 2 <= len(entry) <= 3
        ranked = sorted((value for value in entry.values() if value.rank), key=lambda value: value.rank or 0)
        assert [value.rank for value in ranked] == [1, 2]
        assert 0 >= ranked[0].logprob >= ranked[1].logprob
        assert all(isinstance(value.decoded_token, str) for value in entry.values())
    sampled = [entry[token_id].logprob for token_id, entry in zip(one.token_ids, one.logprobs, strict=True)]
    assert one.cumulative_logprob == pytest.approx(sum(sampled))
    assert llm.generate("hello", GREEDY)[0].outputs[0].logprobs is None


def test_prompts_are_scored(llm: LLM) -> None:
    """Right to the last token of prompt and echo; what is scored has the log-probabilities that sampling it had."""
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
    (said,) = llm.generate("hello", params)
    whole = [*said.prompt_token_ids, *said.outputs[0].token_ids]
    (scored,) = llm.generate([whole], SamplingParams(max_tokens=0, prompt_logprobs=2))
    assert scored.prompt_token_logprobs is not None and scored.prompt_logprobs is not None
    assert scored.prompt_token_logprobs[-6:] == said.outputs[0].token_logprobs
    assert len(scored.prompt_logprobs) == len(whole) and scored.prompt_logprobs[0] is None
    assert scored.prompt_logprobs[-6:] == said.outputs[0].logprobs
    (sample,) = scored.outputs
    assert (sample.token_ids, sample.text, sample.finish_reason, sample.logprobs) == ([], "", "length", None)
    assert said.prompt_logprobs is None and scored.timings is not None and scored.timings.ttft_ms is None
    both = llm.generate("hello", SamplingParams(temperature=0, max_tokens=2, n=2, prompt_logprobs=0))[0]
    assert both.prompt_logprobs is not None and len(both.prompt_logprobs) == len(both.prompt_token_ids)
    assert [len(one.token_ids) for one in both.outputs] == [2, 2]


@pytest.mark.parametrize("n", [1, 3])
def test_timings_sum_to_the_total(llm: LLM, n: int) -> None:
    for output in llm.generate(["hello"] * 40, SamplingParams(max_tokens=5, n=n, ignore_eos=True)):
        t = output.timings
        assert t is not None and t.ttft_ms is not None
        parts = t.queue_ms + t.prefill_ms + t.decode_ms + t.preempted_ms + t.other_ms
        assert parts == pytest.approx(t.total_ms)
        assert sum(t.queued_by.values()) == pytest.approx(t.queue_ms)
        assert 0 < t.ttft_ms <= t.total_ms


# -- engine -------------------------------------------------------------------------------------------------------
def test_the_record_file_holds_it_all(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with LLM(str(tiny), threads=1, record=path) as llm:
        outputs = llm.generate(["hello", "world"], SamplingParams(n=2, max_tokens=4, ignore_eos=True))
    header, *rest = read_records(path)
    assert header_of([header]).settings["max_num_seqs"]["value"] == 32
    requests = {record.request.request_id: record for record in of_kind(rest, "request")}
    steps = of_kind(rest, "step")
    assert [step.plan.step for step in steps] == list(range(len(steps)))
    for output in outputs:
        record = requests[output.request_id]
        assert list(record.request.prompt_token_ids) == list(output.prompt_token_ids)
        assert [list(sample.token_ids) for sample in record.samples] == [one.token_ids for one in output.outputs]


def test_settings_say_what_is_in_force(llm: LLM) -> None:
    assert llm.settings["max_model_len"].value == 256
    assert all(entry.reason for entry in llm.settings.values())
    assert llm.capacity.vocab_size == 384


@pytest.mark.parametrize(
    ("named", "value", "why"),
    [
        ([257, 99_999, -1], "257", "without -1, 99999"),
        ([384], "361", "the tokenizer's, without 384"),
        (256, "256", "as the model's files say"),
    ],
)
def test_end_tokens_that_are_not_in_the_vocabulary_break_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: Any, value: str, why: str
) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    with LLM(str(folder), threads=1) as llm:
        outputs = llm.generate(["one", "two"], SamplingParams(temperature=0, max_tokens=5, min_tokens=3))
        assert all(3 <= len(one.outputs[0].token_ids) <= 5 for one in outputs)
        assert {one.outputs[0].finish_reason for one in outputs} <= {"stop", "length"}
        shown = llm.settings["end_token_ids"]
    assert (shown.value, why in shown.reason) == (value, True), shown
    assert ("they are left out" in caplog.text) == ("without" in why)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"max_num_seqs": 10**20}, "from 1 to 2,147,483,647"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "--max-num-batched-tokens is 63, but 64 sequences"),
        ({"max_model_len": 1}, "no room for an answer"),
        ({"block_size": 24}, "multiple of 16"),
        ({"threads": 2 * CORES, "pin_threads": True}, f"{CORES} cores; give at most {CORES} threads"),
        ({"max_num_seqs": "8"}, "--max-num-seqs is '8'; give a whole number"),
        ({"kv_memory": float("nan")}, "--kv-memory is nan"),
        ({"kv_memory": "1GiB"}, "--kv-memory is '1GiB'; give a number of GiB"),
        ({"kv_memory": 1e300}, "--kv-memory is 1e"),
        ({"kv_memory": 1.0, "num_blocks": 3}, "give one of them"),
        ({"watermark": 1.0}, "--watermark is 1;"),
        ({"watermark": float("nan")}, "--watermark is nan"),
        ({"threads": 100_000}, "this process may use"),
        ({"seed": -1}, "--seed is -1"),
        ({"dtype": "float64"}, "auto, bfloat16, float32"),
        ({"load_format": "gguf"}, "auto, dequantize, dummy"),
        ({"quantization": "fp4"}, "--quantization is 'fp4'; known are none, int8, int8-all, int4, int4-all, fp8"),
        (
            {"quantization": "fp8"},
            "--quantization is fp8, .* the device is the CPU .*take --quantization int8",
        ),
        (
            {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype is fp8, .* the device is the CPU .*take --kv-cache-dtype int8",
        ),
        ({"kv_cache_dtype": "fp4"}, "--kv-cache-dtype is 'fp4'; known are auto, int8, fp8"),
        ({"max_num_seqs": 2**30}, "memory is not enough .*lower --max-num-seqs"),
    ],
)
def test_settings_outside_their_limits(tiny: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        LLM(str(tiny), **settings)


def test_quantized_weights_answer_otherwise_and_say_why(tiny: Path) -> None:
    prompts = [[5] * 20, [6, 7, 8]]
    scores = {}
    for quantization in ("none", "int8", "int8-all", "int4", "int4-all"):
        with LLM(str(tiny), quantization=quantization, threads=1, num_blocks=8) as llm:
            outputs = llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0, logprobs=0))
            result = llm.settings["quantization"]
        scores[quantization] = [output.outputs[0].token_logprobs for output in outputs]
        assert result.value == quantization and ("int8" in result.reason)
    assert all(scores[one] != scores[other] for one, other in itertools.combinations(scores, 2))


def test_int8_keys_and_values_answer_otherwise_in_half_the_room(tiny: Path) -> None:
    scores, sizes = {}, {}
    for held in ("auto", "int8"):
        with LLM(str(tiny), kv_cache_dtype=held, threads=1, kv_memory=0.001) as llm:
            (output,) = llm.generate([[5] * 40], SamplingParams(max_tokens=4, temperature=0, logprobs=0))
            result, sizes[held] = llm.settings["kv_cache_dtype"], llm.settings["num_blocks"].value
        scores[held] = output.outputs[0].token_logprobs
        assert result.value == ("int8" if held == "int8" else "bfloat16") and "int8" in result.reason + str(
            result.value
        )
    assert scores["auto"] != scores["int8"]
    assert sizes["int8"] > 1.3 * sizes["auto"]


def test_random_weights_need_no_tokenizer(bare: Path) -> None:
    with LLM(str(bare), load_format="dummy", threads=1, num_blocks=8) as llm:
        (output,) = llm.generate([1, 2, 3], GREEDY)
        assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 8)
        for wrong in ({"prompts": "text"}, {"prompts": [1], "sampling_params": SamplingParams(stop="x")}):
            with pytest.raises(PromptError, match="no tokenizer"):
                llm.generate(**wrong)  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="no chat template"):
            llm.chat(TALK)


def test_a_sequence_that_outgrows_memory_ends_alone(tiny: Path) -> None:
    with LLM(str(tiny), threads=1, num_blocks=4) as llm:
        long, short = llm.generate([[5] * 60, [6] * 3], SamplingParams(max_tokens=30, ignore_eos=True))
        assert (long.outputs[0].finish_reason, len(long.outputs[0].token_ids)) == ("length", 5)
        assert "needs 5 KV blocks of 16 tokens, but there are 4" in (long.outputs[0].detail or "")
        assert len(short.outputs[0].token_ids) == 30
        with pytest.raises(RequestRefused, match="needs 5 KV blocks"):
            llm.generate([[5] * 70])


def test_closed_is_closed(tiny: Path, tmp_path: Path) -> None:
    llm = LLM(str(tiny), threads=1, record=tmp_path / "record.jsonl")
    llm.close()
    llm.close()
    with pytest.raises(EngineStopped, match="was closed; make a new LLM"):
        llm.generate("hello")
    engine = AsyncEngine(str(tiny), threads=1)
    engine.close()
    engine.close()
    with pytest.raises(EngineStopped, match="was closed"):
        asyncio.run(anext(engine.generate("hello")))


def test_kernels_that_are_not_here(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "nonsense")
    with pytest.raises(SettingsError, match=r"kernels cannot be used: .*nonsense"):
        LLM(str(tiny))


def test_the_built_in_model_answers() -> None:
    with LLM(threads=1) as llm:
        text = llm.chat([{"role": "user", "content": "What is continuous batching?"}])[0].outputs[0].text
    assert len(text.split()) > 5 and text.isprintable()
    assert "request" in text.lower() or "batch" in text.lower()


def test_unknown_names_are_reported() -> None:
    with pytest.raises(AttributeError, match="it has LLM, AsyncEngine"):
        inflight.Engine  # noqa: B018


# -- asyncio ------------------------------------------------------------------------------------------------------
def test_async_outputs_grow_and_end_as_offline_ones(tiny: Path, llm: LLM) -> None:
    params = [SamplingParams(temperature=1.0, seed=n, max_tokens=9, logprobs=1, ignore_eos=True) for n in range(6)]
    expected = llm.generate([f"prompt {n}" for n in range(6)], params)

    async def consume(engine: AsyncEngine, number: int) -> list[RequestOutput]:
        return [output async for output in engine.generate(f"prompt {number}", params[number])]

    async def main() -> list[list[RequestOutput]]:
        async with AsyncEngine(str(tiny), threads=1) as engine:
            return await asyncio.gather(*(consume(engine, number) for number in range(6)))

    for outputs, one in zip(asyncio.run(main()), expected, strict=True):
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(set(lengths)) and lengths[-1] == 9  # a consumer that lags gets larger pieces
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[-1].outputs == one.outputs
        for before, after in itertools.pairwise(outputs):
            assert after.outputs[0].text.startswith(before.outputs[0].text)
            assert len(before.outputs[0].logprobs or ()) == len(before.outputs[0].token_ids)


def test_async_scores_come_with_the_first_token_or_the_end(tiny: Path) -> None:
    async def main() -> list[list[RequestOutput]]:
        async with AsyncEngine(str(tiny), threads=1, max_num_seqs=4, max_num_batched_tokens=8) as engine:
            settings = [SamplingParams(max_tokens=most, prompt_logprobs=0, ignore_eos=True) for most in (0, 2)]
            prompt = list(range(40, 70))
            return [[output async for output in engine.generate(prompt, params)] for params in settings]

    scored, answered = asyncio.run(main())
    for outputs in (scored, answered):
        known = [len(output.prompt_logprobs or ()) for output in outputs]
        assert known == sorted(known) and known[-1] == 30
        assert all(size == 30 for size, output in zip(known, outputs, strict=True) if output.outputs[0].token_ids)
    assert scored[-1].finished and scored[-1].outputs[0].finish_reason == "length"


def test_async_abort_refusal_and_leaving(tiny: Path) -> None:
    endless = SamplingParams(max_tokens=None, ignore_eos=True, n=2)

    async def main() -> None:
        async with AsyncEngine(str(tiny), threads=1) as engine:
            reasons = []
            async for output in engine.generate("hello", endless, request_id="mine"):
                if len(output.outputs[0].token_ids) >= 3:
                    await engine.abort("mine")
                reasons = [one.finish_reason for one in output.outputs]
            assert reasons == ["abort", "abort"]
            async for _ in engine.generate("hello", endless):
                break
            with pytest.raises(RequestRefused, match="300 tokens"):
                async for _ in engine.generate([3] * 300):
                    raise AssertionError("nothing comes of it")
            with pytest.raises(PromptError, match="0 tokens"):
                await anext(engine.generate(""))
            for _ in range(200):
                snapshot = await engine.snapshot()
                if not snapshot.running:
                    break
                await asyncio.sleep(0.01)
            assert (snapshot.running, snapshot.kv.held_blocks) == (0, 0)

    asyncio.run(main())


def test_an_idle_engine_uses_no_cpu(tiny: Path) -> None:
    async def main() -> float:
        async with AsyncEngine(str(tiny), threads=2) as engine:
            async for _ in engine.generate("hello", GREEDY):
                pass
            await asyncio.sleep(0.1)
            before = time.process_time()
            await asyncio.sleep(0.8)
            return time.process_time() - before

    assert asyncio.run(main()) < 0.2


def test_a_switch_interval_holds_while_the_engine_lives(tiny: Path) -> None:
    before = sys.getswitchinterval()
    engine = AsyncEngine(str(tiny), threads=1, switch_interval=0.0005)
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    engine.close()
    assert sys.getswitchinterval() == before
    with pytest.raises(SettingsError, match="switch_interval is 0; give seconds above 0"):
        AsyncEngine(str(tiny), switch_interval=0)
