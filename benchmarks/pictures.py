"""The pictures of docs/strategies.md: what a strategy does with rows and KV blocks over time, drawn from recorded runs.

Runs the same small workload under each strategy on the null executor and a virtual clock, records it as `--record`
would, and draws from the record file alone. Needs matplotlib.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.patches import Patch

from benchmarks.drive import drive
from inflight.core.features import features
from inflight.core.latency import LatencyModel
from inflight.core.plan import BatchPlan, Capacity
from inflight.core.policies.fcfs import Fcfs
from inflight.core.request import Request
from inflight.core.sampling import SamplingParams
from inflight.core.scheduler import Scheduler
from inflight.core.strategies import Strategy
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.strategies.static import Static
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import NullExecutor
from inflight.engine.recorder import Recorder
from inflight.records.schema import read_records

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=6, max_model_len=512, vocab_size=1000)
COLOURS = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]


def step_seconds(plan: BatchPlan) -> float:
    """A machine that takes 20 ms for a step and 1 ms for every token slot in it."""
    return 0.02 + 0.001 * features(plan).tokens


def workload() -> list[Request]:
    rng = random.Random(4)
    requests = []
    for index in range(14):
        prompt = rng.choice((12, 20, 30, 45, 160))
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(rng.randrange(1000) for _ in range(prompt)),
                params=SamplingParams(temperature=0, max_tokens=64),
                arrival=0.08 * index,
                forced_output_tokens=rng.choice((4, 8, 14, 22, 40)),
            )
        )
    return requests


def strategies(latency: LatencyModel) -> list[Strategy]:
    return [
        Static(batch_size=6, max_wait=0.1),
        Dynamic(batch_size=6, window=0.1, buckets=3),
        Continuous(token_budget=512),
        Chunked(token_budget=38),
        Adaptive(token_budget=128, itl_target=0.045, latency=latency),
    ]


def record(strategy: Strategy, latency: LatencyModel, path: Path) -> None:
    scheduler = Scheduler(CAPACITY, strategy, Fcfs(), latency=latency)
    clock = VirtualClock()
    recorder = Recorder(path.open("w"), {"strategy": strategy.name}, CAPACITY)
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY, step_seconds), clock, watchers=[recorder])
    drive(loop, workload())
    loop.close()


def draw(path: Path, name: str, until: float) -> None:
    records = list(read_records(path))
    steps = [line for line in records if line["kind"] == "step"]
    owners = {
        sample["sequence"]: int(line["request_id"])
        for line in records
        if line["kind"] == "request"
        for sample in line["samples"]
    }
    figure, (rows, blocks) = pyplot.subplots(
        2, 1, figsize=(9, 4.6), sharex=True, gridspec_kw={"height_ratios": [3, 2]}, layout="constrained"
    )
    _draw_rows(rows, steps, owners)
    _draw_blocks(blocks, steps, owners)
    rows.set_title(f"{name}: all answered after {steps[-1]['committed']:.2f} s", loc="left", fontsize=11)
    blocks.set_xlim(0, until)
    blocks.set_xlabel("seconds")
    figure.savefig(FOLDER / f"{name}.png", dpi=110)
    pyplot.close(figure)


def _draw_rows(axes: Any, steps: Sequence[dict[str, Any]], owners: dict[int, int]) -> None:
    """A bar per chunk: full height for prompts, lower for single tokens; grey where slots are padding."""
    held: set[int] = set()
    for step in steps:
        left, width = step["planned"], step["committed"] - step["planned"]
        held -= set(step["freed_rows"])
        held |= {chunk["row"] for chunk in step["chunks"]}
        for chunk in step["chunks"]:
            height = 0.9 if chunk["length"] > 1 else 0.5
            colour = COLOURS[owners[chunk["sequence"]] % len(COLOURS)]
            axes.barh(chunk["row"], width, left=left, height=height, color=colour, edgecolor="white", linewidth=0.2)
        for row in held - {chunk["row"] for chunk in step["chunks"]} if step["padding"] else ():
            axes.barh(row, width, left=left, height=0.5, color="0.85", edgecolor="0.6", linewidth=0.2, hatch="///")
    axes.set_yticks(range(CAPACITY.max_rows), [str(row) for row in range(CAPACITY.max_rows)])
    axes.set_ylabel("row")
    axes.invert_yaxis()
    handles = [Patch(color="0.4", label="tall: prompt, low: one token"), Patch(fc="0.85", hatch="///", label="padding")]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False)


def _draw_blocks(axes: Any, steps: Sequence[dict[str, Any]], owners: dict[int, int]) -> None:
    """KV blocks held, stacked by owner; a row's table grows by the new blocks of its chunks until the row is freed."""
    held: dict[int, tuple[int, int]] = {}  # row → (owner, blocks)
    times, counts = [], []
    for step in steps:
        for row in step["freed_rows"]:
            held.pop(row, None)
        for chunk in step["chunks"]:
            owner, count = owners[chunk["sequence"]], len(chunk["new_blocks"])
            held[chunk["row"]] = (owner, held.get(chunk["row"], (owner, 0))[1] + count)
        times.append(step["planned"])
        by_owner: dict[int, int] = {}
        for owner, count in held.values():
            by_owner[owner] = by_owner.get(owner, 0) + count
        counts.append(by_owner)
    everyone = sorted({owner for one in counts for owner in one})
    series = [[one.get(owner, 0) for one in counts] for owner in everyone]
    axes.stackplot(times, series, colors=[COLOURS[owner % len(COLOURS)] for owner in everyone], step="post")
    axes.set_ylabel("KV blocks held")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    ends = {}
    for index in range(len(strategies(LatencyModel()))):
        latency = LatencyModel()  # each strategy's engine learns for itself
        strategy = strategies(latency)[index]
        path = FOLDER / f"{strategy.name}.jsonl"
        record(strategy, latency, path)
        ends[path] = max(line["committed"] for line in read_records(path) if line["kind"] == "step")
    for path in ends:
        draw(path, path.stem, 1.02 * max(ends.values()))
        path.unlink()
    for path, end in ends.items():
        print(f"{path.stem}: all answered after {end:.2f} s")


if __name__ == "__main__":
    main()
