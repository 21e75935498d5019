"""Engines whose passes are replayed say what others say: passes filled up, memory that stays, states and all.

A replay here runs the same operations on the tensors of the pass that was captured, which is what a graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from benchmarks.drive import drive
from benchmarks.shapes import TINY, write_config
from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.kv import manager
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets, row_sizes
from inflight.execution.backends.torch.capture import CapturedDecoder
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.memory import kv_shape, states_of
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

ROWS, BLOCKS, POSITIONS, SNAPSHOTS = 6, 40, 128, 8
DENSE = {**TINY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "vocab_size": 300}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": DENSE,
    "qwen3_next": {
        **DENSE,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
    },
}


class Replay:
    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self.count = run, 0

    def replay(self) -> None:
        self.count += 1
        self._run()


class Replays:
    def __init__(self) -> None:
        self.made: list[Replay] = []

    def capture(self, run: Callable[[], None]) -> Replay:
        self.made.append(Replay(run))
        return self.made[-1]


def answers(shape: dict[str, Any], folder: Path, graphs: Replays | None, buckets: Buckets) -> list[list[int]]:
    """Run ten requests, and some that go on from their outputs, whose states were kept on the way."""
    spec = read_folder(write_config(folder / "shape", shape), to_run=True)
    backend = TorchBackend("float32", torch.device("cpu"), Definitions(), buckets=buckets)
    weights = load_weights(spec, DummyWeights("float32"), backend, POSITIONS)
    decoder: Any = Model(spec, weights, backend, 64, ROWS)
    kinds = states_of(spec)
    capacity = Capacity(BLOCKS, 16, ROWS, POSITIONS, spec.vocab_size, state_snapshots=SNAPSHOTS if kinds else 0)
    runner = ModelRunner(
        CapturedDecoder(decoder, graphs, buckets) if graphs else decoder,
        backend,
        backend.kv_cache(kv_shape(spec, 16), BLOCKS + 1),
        capacity,
        backend.state_cache(kinds, ROWS + 1, SNAPSHOTS) if kinds else None,
    )
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=64, max_model_len=POSITIONS)
    loop = EngineLoop(scheduler_for(capacity, settings, SchedulingSettings()), runner, MonotonicClock())
    first = drive(loop, [request(number) for number in range(10)]).outcomes
    prompts = [(*one.request.prompt_token_ids, *one.token_ids, 5) for one in first[-4:]]
    again = [
        structs.replace(request(number), request_id=f"again {number}", prompt_token_ids=prompt)
        for number, prompt in enumerate(prompts)
    ]
    return [one.token_ids for one in (*first, *drive(loop, again).outcomes)]


def request(number: int) -> Request:
    """Some share a prefix; half of them are drawn, and one row has penalties."""
    shared = tuple(range(3, 35)) if number % 2 else ()
    prompt = (*shared, *((7 * number + 11 * at) % 290 + 3 for at in range(3 + 5 * number)))
    params = SamplingParams(
        temperature=0.8 if number % 3 == 0 else 0.0,
        repetition_penalty=1.3 if number == 4 else 1.0,
        max_tokens=8 + 3 * number,
        ignore_eos=True,
    )
    return Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number)


@pytest.mark.parametrize(
    ("model", "tokens"), [("qwen2", ()), ("qwen2", (2, 4, 8, 24)), ("qwen3_next", ())], ids=["rows", "tokens", "states"]
)
def test_an_engine_with_graphs_says_what_one_without_says(
    model: str, tokens: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens: of passes with prompts, more of them than logits are computed of at once."""
    monkeypatch.setattr(manager, "CheckpointSpacing", lambda: CheckpointSpacing(32, 16))  # in the midst of answers, too
    graphs, buckets = Replays(), Buckets(row_sizes(ROWS), tokens)
    found = answers(MODELS[model], tmp_path, graphs, buckets)
    expected = answers(MODELS[model], tmp_path, None, NO_BUCKETS)
    assert found == expected and all(found)
    assert len(graphs.made) >= 3 and sum(graph.count for graph in graphs.made) > 20
