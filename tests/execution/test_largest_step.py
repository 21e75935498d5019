"""The largest step is computed before there is a KV cache: what it is of, what is counted, and what is said where it
does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inflight.config.setting import SettingsError
from inflight.execution.backends.protocol import DeviceMemory
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import Buckets
from inflight.execution.backends.torch.capture import CapturedDecoder
from inflight.execution.largest_step import LargestStep, chunk_lengths, largest_step_bytes
from inflight.execution.memory import GIB
from inflight.models.errors import ModelError

from .backends.torch.opened import on_cpu
from .backends.torch.test_engine import opened
from .conftest import OracleOf
from .test_depth import requests, run

TOTAL, HELD, STEP = 8 * GIB, GIB, GIB // 2


class OwnMemory(TorchBackend):
    """A device with memory of its own, of which the largest step takes half a GiB; the CPU computes for it."""

    def __init__(self, free: int = 7 * GIB) -> None:
        plain = on_cpu(depth=2)
        super().__init__("float32", torch.device("cpu"), plain._launcher, depth=2)
        self.free, self.passes, self.short = free, [], False  # type: list[list[Any]]
        self.counting = False

    def own_memory(self) -> DeviceMemory:
        return DeviceMemory(TOTAL, self.free, HELD)

    def peak_bytes(self, run: Callable[[], None]) -> int:
        self.counting = True
        run()
        self.counting = False
        return STEP

    def prepare(self, batch: Any, kv_cache: Any, chunks: Any) -> Any:
        if self.counting and chunks:
            if self.short:
                raise torch.OutOfMemoryError("it tried to allocate 3 GiB")
            self.passes.append(list(chunks))
        return super().prepare(batch, kv_cache, chunks)


def test_prompts_stand_beside_as_many_decodes_as_there_can_be() -> None:
    assert chunk_lengths(12, 4, 100) == [9, 1, 1, 1]
    assert chunk_lengths(12, 4, 6) == [6, 4, 1, 1]
    assert chunk_lengths(3, 4, 6) == [1, 1, 1]
    assert sum(chunk_lengths(2304, 256, 131072)) == 2304


def test_an_engine_leaves_the_largest_step_its_memory(tiny: Path) -> None:
    backend = OwnMemory()
    shape: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 40, "max_model_len": 200}
    engine = opened(tiny, backend, device="auto", gpu_memory_utilization=0.19, **shape)
    (computed,) = backend.passes
    assert [(one.start, one.length, one.sample) for one in computed] == [(165, 35, 1)] + [(199, 1, 1)] * 5
    setting = engine.settings["num_blocks"]
    block = backend.bytes_per_block(engine.executor._kv_cache.shape)  # type: ignore[attr-defined]
    assert setting.value == min((int(TOTAL * 0.19) - HELD - STEP) // block, 6 * 13)
    assert engine.start.profile > 0
    assert run(engine, requests(1)) == run(opened(tiny, on_cpu()), requests(1)), "nothing is left of it"


def test_no_graph_is_captured_of_it(tiny: Path) -> None:
    """Its memory is given up: a step of as many tokens as rows is one that a decoder would capture."""
    backend = OwnMemory()
    runner: Any = opened(tiny, backend, max_num_seqs=4).executor

    class Graphs:
        def capture(self, run: Callable[[], None]) -> Any:
            raise AssertionError("captured")

    backend.buckets = Buckets((1, 2, 4), (2, 4))
    step = LargestStep(4, 4, 100, runner.capacity.vocab_size, runner._kv_cache.shape, (0,))
    assert largest_step_bytes(CapturedDecoder(runner._decoder, Graphs(), backend.buckets), backend, step) == STEP
    assert [one.length for one in backend.passes[-1]] == [1] * 4


@pytest.mark.parametrize("variant", ["qwen35", "gpt_oss", "deepseek_v2", "lfm2"])
def test_states_windows_and_latent_keys_take_part(oracle_of: OracleOf, variant: str) -> None:
    backend = OwnMemory()
    engine = opened(oracle_of(variant).folder, backend, load_format="dummy", max_num_seqs=4, max_num_batched_tokens=40)
    assert [one.length for one in backend.passes[0]] == [37, 1, 1, 1] and engine.start.profile > 0


@pytest.mark.parametrize(
    ("free", "shape", "sentence"),
    [
        (7 * GIB, {"gpu_memory_utilization": 0.1}, r"--gpu-memory-utilization 0.1 lets .* have 819.2 MiB; weights "),
        (GIB // 4, {}, "the largest step 512.0 MiB, and 256.0 MiB are free: that leaves nothing for a KV block"),
        (7 * GIB, {"kv_memory": 6.9}, r"take 6.9 GiB, but only 6.5 GiB .* beside the 512.0 MiB that the largest step"),
    ],
)
def test_what_does_not_fit_beside_it_is_refused_with_numbers(
    tiny: Path, free: int, shape: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        opened(tiny, OwnMemory(free), device="auto", **shape)


def test_a_step_that_does_not_fit_itself_is_refused(tiny: Path) -> None:
    backend = OwnMemory()
    backend.short = True
    with pytest.raises(ModelError, match=r"a step of 160 tokens, in 32 sequences .* than the 7.0 GiB of the GPU's"):
        opened(tiny, backend)


def test_weights_that_do_not_fit_are_refused_with_what_would(tiny: Path) -> None:
    with pytest.raises(ModelError, match=r"200.0 KiB of the GPU's 8.0 GiB are free; take"):
        opened(tiny, OwnMemory(200 << 10))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gpu_memory_utilization": 1.1}, "is 1.1; give a share above 0, up to 1"),
        ({"gpu_memory_utilization": 0.5, "device": "cpu"}, "is about a GPU's memory, and --device is cpu"),
        ({"gpu_memory_utilization": 0.5, "kv_memory": 1.0}, "and --kv-memory both set"),
        ({"gpu_memory_utilization": 0.5, "num_blocks": 9}, "and --num-blocks both set"),
    ],
)
def test_shares_that_make_no_sense_are_refused(tiny: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        opened(tiny, on_cpu(), **{"device": "auto", **given})
