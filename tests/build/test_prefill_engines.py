"""`LLM` and `AsyncEngine` with engines beside them that compute the prompts: the same answers, whatever becomes of
these."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapters import write_adapter
from models import write_model

from inflight import LLM, AsyncEngine, RequestOutput, SamplingParams
from inflight.build import build_engines
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.engine.loop import EngineLoop

SHAPE: dict[str, Any] = {"threads": 1, "max_num_batched_tokens": 40, "num_blocks": 384, "max_num_seqs": 6}
PARAMS = SamplingParams(temperature=0.8, max_tokens=6, ignore_eos=True, seed=3)


def prompts(seed: int, count: int, shortest: int = 100) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(5, 380) for _ in range(drawn.randrange(shortest, 240))] for _ in range(count)]


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[one.token_ids for one in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), **SHAPE) as llm:
        yield llm


@pytest.fixture(scope="module")
def pair(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), prefill_engines=1, **SHAPE) as llm:
        yield llm


def pulled(llm: LLM) -> int:
    peer_transfers = llm._engine.peer_transfers
    assert peer_transfers is not None and not peer_transfers.counts.failed_pulls
    return peer_transfers.counts.pulled_blocks


def test_answers_are_the_same_and_no_whole_block_is_computed_twice(plain: LLM, pair: LLM) -> None:
    before, asked = pulled(pair), prompts(1, 24)
    outputs = pair.generate(asked, PARAMS)
    assert tokens(outputs) == tokens(plain.generate(asked, PARAMS))
    assert pulled(pair) - before == sum((len(one) - 1) // 16 for one in asked)
    cached = [output.timings.cached_tokens for output in outputs]
    assert cached == [(len(one) - 1) // 16 * 16 for one in asked]


def test_blocks_that_are_not_transferred_are_computed(plain: LLM, pair: LLM) -> None:
    """Short prompts, scored ones, several samples, text and talk."""
    before, [long] = pulled(pair), prompts(2, 1)
    for params in (replace(PARAMS, n=3), replace(PARAMS, prompt_logprobs=1), PARAMS):
        assert tokens(pair.generate([long, [7] * 16], params)) == tokens(plain.generate([long, [7] * 16], params))
    assert pulled(pair) - before == (len(long) - 1) // 16, "once, for the samples that share it"
    talk = [{"role": "user", "content": "hello"}]
    greedy = SamplingParams(temperature=0, max_tokens=8)
    assert tokens(pair.generate("hello world " * 20, greedy)) == tokens(plain.generate("hello world " * 20, greedy))
    assert tokens(pair.chat(talk, greedy)) == tokens(plain.chat(talk, greedy))


def test_answers_are_the_same_in_little_memory(tiny: Path, plain: LLM) -> None:
    asked = prompts(8, 20)
    with LLM(str(tiny), prefill_engines=1, **{**SHAPE, "num_blocks": 40}) as pair:
        outputs = pair.generate(asked, PARAMS)
    assert tokens(outputs) == tokens(plain.generate(asked, PARAMS))
    assert sum(output.timings.cached_tokens for output in outputs) > 0.5 * sum(map(len, asked))


def test_two_of_them_share_the_prompts(tiny: Path, plain: LLM) -> None:
    asked = prompts(3, 12)
    with LLM(str(tiny), prefill_engines=2, **SHAPE) as three:
        assert tokens(three.generate(asked, PARAMS)) == tokens(plain.generate(asked, PARAMS))
        given = [one._exports.counts.served_blocks for one in three._prefill._engines]  # type: ignore[attr-defined]
    assert sum(given) == sum((len(one) - 1) // 16 for one in asked) and min(given) > 0


def test_one_that_stops_by_a_fault_costs_computing_alone(
    tiny: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prompts(4, 6)
    with LLM(str(tiny), prefill_engines=1, **SHAPE) as pair:
        [engine] = pair._prefill._engines
        advance, left = engine._loop.advance, iter(range(5))

        def broken() -> object:
            if next(left, None) is None:
                raise RuntimeError("a fault of the test")
            return advance()

        monkeypatch.setattr(engine._loop, "advance", broken)
        assert tokens(pair.generate(asked, PARAMS)) == tokens(plain.generate(asked, PARAMS))
        assert engine.stopped
        assert tokens(pair.generate(asked[:2], PARAMS)) == tokens(plain.generate(asked[:2], PARAMS))


def test_a_step_of_it_that_fails_costs_computing_alone(tiny: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prompts(5, 4)
    with LLM(str(tiny), prefill_engines=1, **SHAPE) as pair:
        [engine] = pair._prefill._engines
        decoder, faults = engine._loop._executor._decoder, iter([False, True])  # type: ignore[attr-defined]
        forward = decoder.forward

        def broken(batch: object) -> None:
            if next(faults, False):
                raise RuntimeError("a fault of the test")
            forward(batch)

        monkeypatch.setattr(decoder, "forward", broken)
        assert tokens(pair.generate(asked, PARAMS)) == tokens(plain.generate(asked, PARAMS))
        assert not engine.stopped


def test_adapters_are_handed_over_under_their_own_name(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    adapter = write_adapter(tmp_path / "adapter", model)
    [asked] = prompts(6, 1)
    given = {**SHAPE, "lora": (f"one={adapter}",)}
    with LLM(str(model), **given) as plain, LLM(str(model), prefill_engines=1, **given) as pair:
        for name in ("one", None):
            (output,) = pair.generate([asked], PARAMS, adapter=name)
            assert tokens([output]) == tokens(plain.generate([asked], PARAMS, adapter=name))
            assert output.timings.cached_tokens


def test_many_at_once_on_asyncio_and_some_that_leave(tiny: Path, plain: LLM) -> None:
    asked = prompts(7, 10)
    expected = [one.outputs[0].token_ids for one in plain.generate(asked, PARAMS)]

    async def whole(engine: AsyncEngine, prompt: list[int]) -> list[int]:
        return [output.outputs[0].token_ids async for output in engine.generate(prompt, PARAMS)][-1]

    async def leaves(engine: AsyncEngine, prompt: list[int]) -> None:
        async for _ in engine.generate(prompt, PARAMS):
            return

    async def main() -> list[list[int]]:
        async with AsyncEngine(str(tiny), prefill_engines=1, **SHAPE) as engine:
            gone = asyncio.gather(*(leaves(engine, one) for one in asked[:4]))
            answers = await asyncio.gather(*(whole(engine, one) for one in asked))
            await gone
            assert not engine._prefill._assigned
            return list(answers)

    assert asyncio.run(main()) == expected


def test_impossible_settings_are_refused(tiny: Path) -> None:
    def refused(model: Path, count: object = 1, **given: object) -> str:
        with pytest.raises(SettingsError) as refusal:
            build_engines(EngineSettings(model=str(model), **given), prefill_engines=count)  # type: ignore[arg-type]
        return str(refusal.value)

    assert refused(tiny, 99).startswith("prefill_engines is 99; give a whole number from 1 to 8")
    assert refused(tiny, "one").startswith("prefill_engines is 'one'")
    assert refused(tiny, cpu_list="0").startswith("--cpu-list gives the threads of one engine their CPUs")
    assert refused(tiny, enable_prefix_caching=False).startswith("prefill_engines needs the prefix cache")


def test_settings_show_them_and_cores_are_shared(tiny: Path) -> None:
    with LLM(str(tiny), prefill_engines=1, num_blocks=32) as pair:
        shown = pair.settings["prefill_engines"]
        assert shown.value == 1 and "compute its prompts" in shown.reason
        assert "shared by 2 engines" in pair.settings["threads"].reason
        loops = [pair._engine.loop, *(one._loop for one in pair._prefill._engines)]
    assert all(isinstance(one, EngineLoop) and one.idle for one in loops)


def test_nothing_is_left_of_one_that_is_not_closed(tiny: Path) -> None:
    """At the end of a program, too: a thread that held a model would have its kernels complain."""
    program = (
        "from inflight import LLM, SamplingParams\n"
        f"llm = LLM({str(tiny)!r}, prefill_engines=1, threads=1, num_blocks=64)\n"
        "print(len(llm.generate([[7] * 40], SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "4", "")
    before = set(threading.enumerate())
    dropped = LLM(str(tiny), prefill_engines=1, **SHAPE)
    dropped.generate([[7] * 40], PARAMS)
    assert {one.name for one in set(threading.enumerate()) - before} >= {"inflight-prefill", "inflight-kv-pull"}
    del dropped
    gc.collect()
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("after", [0.0, 0.02, 0.05])
def test_after_ctrl_c_the_next_call_is_answered(pair: LLM, plain: LLM, after: float) -> None:
    """A real signal at a random moment; what is computed for the call is aborted."""
    asked = prompts(9, 6)
    expected = tokens(plain.generate(asked, PARAMS))
    timer = threading.Timer(after, signal.raise_signal, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            pair.generate(prompts(10, 8), replace(PARAMS, max_tokens=40))
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert tokens(pair.generate(asked, PARAMS)) == expected
    assert not pair._prefill._assigned
