"""Engines whose ranks are processes, over gloo: what they say, and how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from breadth import first_of
from models import write_model
from msgspec import structs

from inflight import LLM, SamplingParams
from inflight.config.setting import SettingsError
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams as CoreParams
from inflight.execution import ops
from inflight.execution.parallel import workers
from inflight.execution.parallel.executor import ParallelExecutor
from inflight.execution.parallel.messages import RanksLost
from inflight.models.errors import ModelError

PROMPTS = [list(range(10, 10 + count)) for count in (30, 5, 70)]
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)


@pytest.fixture(autouse=True)
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed on the CPU as a GPU's backend would be; workers have it from their environment."""
    monkeypatch.setenv("INFLIGHT_ISA", "torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("shared"), "qwen3", intermediate_size=128)


def opened(folder: Path, ranks: int, **settings: Any) -> LLM:
    given = {"dtype": "float32", "device": "cpu", "threads": 1, "num_blocks": 40, "max_num_seqs": 4, **settings}
    return LLM(str(folder), tensor_parallel_size=ranks, **given)


Said = tuple[tuple[int, ...], tuple[float, ...]]  # tokens and their log-probabilities


def said(llm: LLM, prompts: Sequence[list[int]]) -> list[Said]:
    found = []
    for output in llm.generate(list(prompts), GREEDY):
        (sample,) = output.outputs
        assert sample.logprobs is not None
        tokens = tuple(sample.token_ids)
        logprobs = zip(tokens, sample.logprobs, strict=True)
        found.append((tokens, tuple(scores[token].logprob for token, scores in logprobs)))
    return found


def processes(llm: LLM) -> list[Any]:
    executor = llm._engine.executor
    assert isinstance(executor, ParallelExecutor)
    return [worker._process for worker in executor._workers._workers]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.wide)])
def test_ranks_say_what_one_device_says(folder: Path, ranks: int) -> None:
    """And draw what it draws, which they compare after every step; rows that are swapped are so on all of them."""
    drawn = SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=20, ignore_eos=True, n=3)
    little: dict[str, Any] = {"num_blocks": 14, "swap_space": 0.01, "preemption": "swap"}
    found, draws = [], []
    for count in (1, ranks):
        with opened(folder, count, **little) as llm:
            found.append(said(llm, PROMPTS))
            draws.append([sample.token_ids for output in llm.generate(PROMPTS, drawn) for sample in output.outputs])
            setting = llm.settings.get("tensor_parallel_size")
            started = [] if count == 1 else processes(llm)
    assert setting is not None and setting.value == ranks
    assert [process.poll() is not None for process in started] == [True] * (ranks - 1)
    alone, together = found
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
    for (_, those), (_, wanted) in zip(together, alone, strict=True):
        assert those == pytest.approx(wanted, abs=1e-4)
    assert draws[0] == draws[1]


# -- no memory ---------------------------------------------------------------------------------------------------------
SHORT = """
import os, sys
flag = os.environ["SHORT_OF_MEMORY"]
if "inflight.execution.parallel.worker" in sys.orig_argv:
    from inflight.execution import ops
    attention = ops.attention.definition
    def short(*arguments):
        if os.path.exists(flag):
            os.remove(flag)
            raise MemoryError
        attention(*arguments)
    ops.attention.definition = short
"""


@pytest.fixture
def short_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[LLM, int], None]:
    """Make a rank of the next engine lack memory for its next attention."""
    (tmp_path / "sitecustomize.py").write_text(SHORT)
    flag = tmp_path / "flag"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SHORT_OF_MEMORY", str(flag))

    def cause(llm: LLM, rank: int) -> None:
        if rank:
            flag.touch()
            return
        attention = ops.attention.definition

        def short(*arguments: Any) -> None:
            monkeypatch.setattr(ops.attention, "definition", attention)
            raise MemoryError

        monkeypatch.setattr(ops.attention, "definition", short)

    return cause


def asked(name: str, prompt: list[int]) -> Request:
    params = CoreParams(temperature=0, max_tokens=6, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=params)


@pytest.mark.parametrize("rank", first_of([1, 0]))
def test_a_rank_without_memory_fails_the_step_on_all_and_they_go_on(
    folder: Path, short_of_memory: Callable[[LLM, int], None], rank: int
) -> None:
    """Report to the prompt's request which rank lacked what; all others, and later ones, are answered."""
    with opened(folder, 2) as llm:
        wanted = [tokens for tokens, _ in said(llm, PROMPTS)]
        loop, heard = llm._engine.loop, []
        loop.add(asked("long", PROMPTS[0]))
        for _ in range(2):  # one more token each: it decodes when the other one comes
            heard += loop.advance()
        short_of_memory(llm, rank)
        loop.add(asked("short", PROMPTS[1]))
        heard += loop.run()
        tokens = [token for one in heard if isinstance(one, TokensEvent) for token in one.token_ids]
        ends = {one.request_id: one.finishes[0] for one in heard if isinstance(one, FinishedEvent)}
        assert tuple(tokens) == wanted[0] and ends["long"].reason == "length"
        assert ends["short"].reason == "error"
        assert str(ends["short"].detail).startswith(f"On rank {rank}: Step ")
        assert "memory is used up; lower --max-num-batched-tokens" in str(ends["short"].detail)
        assert [tokens for tokens, _ in said(llm, PROMPTS)] == wanted, "they are at the same step still"


# -- the end -----------------------------------------------------------------------------------------------------------
def test_a_killed_worker_ends_the_engine_with_a_sentence(folder: Path) -> None:
    with opened(folder, 2) as llm:
        said(llm, PROMPTS[:1])
        (process,) = processes(llm)
        process.kill()
        with pytest.raises(RanksLost, match=r"Rank 1 was killed \(SIGKILL\).*start the engine again"):
            said(llm, PROMPTS)
        with pytest.raises(RanksLost, match="Rank 1 was killed"):
            said(llm, PROMPTS)


@pytest.mark.wide  # it waits for as long as is agreed on
def test_a_worker_that_stands_still_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Workers", partial(workers.Workers, seconds=20.0))
    with opened(folder, 2) as llm:
        said(llm, PROMPTS[:1])
        (process,) = processes(llm)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(RanksLost, match=r"Rank 1 has not answered for \d+ s"):
            said(llm, PROMPTS)
    assert process.poll() == -signal.SIGKILL


@pytest.mark.wide
def test_a_fault_of_the_first_rank_ends_the_others(folder: Path) -> None:
    with opened(folder, 2) as llm:
        (process,) = processes(llm)
        executor = llm._engine.executor

        def fail(batch: object) -> None:
            raise MemoryError

        executor._runner._decoder.forward = fail
        with pytest.raises(RanksLost, match=r"memory is used up.*start the engine again"):
            said(llm, PROMPTS)
        assert process.poll() is None  # it waits for the first rank's part
    assert process.poll() is not None


def test_a_fault_of_a_worker_is_raised_with_its_message(folder: Path) -> None:
    with opened(folder, 2) as llm:
        executor = llm._engine.executor
        send = executor._workers.step

        def of_a_row_that_is_not_there(plan: BatchPlan) -> None:
            send(structs.replace(plan, chunks=tuple(structs.replace(chunk, row=99) for chunk in plan.chunks)))

        executor._workers.step = of_a_row_that_is_not_there
        with pytest.raises(RanksLost, match=r"Rank 1 failed: .*start the engine again"):
            said(llm, PROMPTS)


def test_what_cannot_be_shared_is_refused_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"4 query heads and 2 KV heads, which 3 devices cannot share"):
        opened(folder, 3)
    with pytest.raises(SettingsError, match="--tensor-parallel-size is 0; give a whole number from 1"):
        opened(folder, 0)
    with pytest.raises(SettingsError, match="--tensor-parallel-size is for models that are computed by our own"):
        opened(folder, 2, backend="transformers")
    monkeypatch.delenv("INFLIGHT_ISA")
    with pytest.raises(SettingsError, match=r"is 2, which is for GPUs, but the device is the CPU \(as set\)"):
        opened(folder, 2)
