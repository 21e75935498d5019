"""An engine in virtual time: the real scheduler, the null executor, and step times from a linear model of a step.

Knows how long the steps of one real engine took (a Qwen2.5-0.5B shape in bf16 on two cores); `--record` measures that
anew: it drives the real engine through decodes of several widths and prompts of several lengths, fits the coefficients
to the step record by least squares on relative errors, and prints them with the error that is left.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drive import Observer
from benchmarks.engines import null_loop
from benchmarks.results import table
from benchmarks.shapes import QWEN25_05B, write_config
from benchmarks.workloads import lognormal, prompt
from inflight.api import LLM, SamplingParams
from inflight.config import EngineSettings
from inflight.core.features import Features, features
from inflight.core.plan import BatchPlan, Capacity
from inflight.engine.loop import EngineLoop
from inflight.records.schema import read_records
from inflight.scheduling import SchedulingSettings

VOCABULARY = 32_000
ROWS, BUDGET = 32, 96  # as the engine chooses on a CPU
MAX_MODEL_LEN = 4096


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: what it costs anyway, and per token, sampled row, million positions that decodes read back,
    million query-key pairs of prompts, and copied block."""

    step: float = 0.0255
    token: float = 0.00164
    sample: float = 0.0
    decode_context: float = 0.1
    prefill_context: float = 0.7
    moved_block: float = 0.0

    def of(self, held: Features) -> float:
        return (
            self.step
            + self.token * held.tokens
            + self.sample * held.samples
            + self.decode_context * held.decode_context / 1e6
            + self.prefill_context * held.prefill_context / 1e6
            + self.moved_block * held.moved_blocks
        )

    def __call__(self, plan: BatchPlan) -> float:
        return self.of(features(plan))


class NoisyCost:
    """The same steps on a machine that others use too: times vary by a third, and every fiftieth is three times as
    long. Seeded, so that every run has the same noise."""

    def __init__(self, seed: int = 0) -> None:
        self._cost = StepCost()
        self._rng = random.Random(seed)

    def __call__(self, plan: BatchPlan) -> float:
        factor = math.exp(self._rng.gauss(0.0, 0.35)) * (3 if self._rng.random() < 0.02 else 1)
        return self._cost(plan) * factor


def virtual_engine(
    scheduling: SchedulingSettings,
    cost: StepCost | NoisyCost | None = None,
    observer: Observer | None = None,
    *,
    num_blocks: int = 8192,
    host_blocks: int = 0,
    prefix_caching: bool = True,
) -> EngineLoop:
    """An engine of ROWS rows and BUDGET tokens a step, put together as the real ones are, on virtual time."""
    cost = cost or StepCost()
    moved_block = cost.moved_block if isinstance(cost, StepCost) else 0.0
    capacity = Capacity(num_blocks, 16, ROWS, MAX_MODEL_LEN, VOCABULARY, host_blocks, moved_block)
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, enable_prefix_caching=prefix_caching)
    return null_loop(capacity, settings, scheduling, cost, observer)


def fit(steps: Iterable[dict[str, Any]]) -> tuple[StepCost, float]:
    """Coefficients, none below zero, and the median relative error."""
    names = ("tokens", "samples", "decode_context", "prefill_context")
    kept = [one for one in steps if one["seconds"] > 0]
    seconds = np.array([one["seconds"] for one in kept])
    columns = [np.ones(len(kept))] + [np.array([float(one["features"][name]) for one in kept]) for name in names]
    matrix = np.stack(columns, axis=1)
    active = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, active] / seconds[:, None], np.ones(len(kept)), rcond=None)
        if (found >= 0).all():
            break
        active = [index for index, value in zip(active, found, strict=True) if value >= 0]
    beta = np.zeros(matrix.shape[1])
    beta[active] = found
    error = float(np.median(np.abs(matrix @ beta / seconds - 1)))
    step, token, sample, decode_context, prefill_context = (float(value) for value in beta)
    return StepCost(step, token, sample, decode_context * 1e6, prefill_context * 1e6), error


def measure() -> tuple[StepCost, float, list[list[object]]]:
    """Steps of the real engine, and what they fit to; a table of decode steps by width beside it."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        model = write_config(Path(folder) / "shape", QWEN25_05B)
        record = Path(folder) / "record.jsonl"
        llm = LLM(model, load_format="dummy", max_num_seqs=ROWS, max_model_len=2048, record=record)
        for batch in (1, 4, 8, 16, 32, 32):
            prompts = [list(prompt(rng, lognormal(rng, 60, 600, 1000), VOCABULARY)) for _ in range(batch)]
            params = [SamplingParams(temperature=0, max_tokens=rng.randint(4, 24), ignore_eos=True) for _ in prompts]
            llm.generate(prompts, params)
        llm.close()
        steps = [line for line in read_records(record) if line["kind"] == "step"][2:]
    cost, error = fit(steps)
    rows: list[list[object]] = []
    for width in (1, 2, 4, 8, 16, 24, 32):
        seen = [s["seconds"] for s in steps if s["features"]["tokens"] == s["features"]["samples"] == width]
        if seen:
            rows.append(
                [width, f"{statistics.median(seen) * 1e3:.0f}", f"{(cost.step + cost.token * width) * 1e3:.0f}"]
            )
    return cost, error, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="measure the real engine")
    arguments = parser.parse_args()
    if not arguments.record:
        print(StepCost())
        return
    cost, error, rows = measure()
    print(cost, f"median relative error {error:.3f}")
    print(table(["decodes", "measured, ms", "fitted, ms"], rows))


if __name__ == "__main__":
    main()
