"""Preemption: what is cheaper, to recompute a victim's tokens or to copy its blocks to the host and back.

A KV pool far too small for the rows makes the engine preempt all the time. In virtual time the speed of copying is a
setting, from copies that cost nothing to copies dearer than computing anew; the real engine (a Qwen2.5-0.5B shape) says
where this machine stands. Throughput counts output tokens from the first arrival to the last token.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass, replace

from benchmarks.drive import drive
from benchmarks.engines import Model
from benchmarks.results import table, write_section
from benchmarks.virtual import COST, VOCABULARY, virtual_engine
from benchmarks.workloads import lognormal, prompt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop

MODES = ("recompute", "swap", "auto")
COPIES_MS = (0.0, 0.05, 1.0, 5.0, 10.0, 13.0, 16.0, 20.0, 40.0, 80.0)  # per block, one way
BLOCKS, HOST_BLOCKS = 96, 1024


@dataclass(frozen=True, slots=True)
class Found:
    tokens_per_s: float
    preemptions: int
    recomputed: int  # tokens
    swapped: int  # blocks


def requests(number: int, vocabulary: int, seed: int = 0) -> list[Request]:
    """Prompts p50 60, p99 200; outputs p50 100, p99 300: about three times more than the pool holds at once."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=prompt(rng, lognormal(rng, 60, 200, 300), vocabulary),
            params=SamplingParams(temperature=0, max_tokens=400, ignore_eos=True),
            forced_output_tokens=lognormal(rng, 100, 300, 400),
        )
        for index in range(number)
    ]


def serve(loop: EngineLoop, offered: list[Request]) -> Found:
    run = drive(loop, offered)
    preemptions = loop.stats().preemptions
    loop.close()
    timings = [one.timings for one in run.outcomes if one.timings is not None]
    return Found(
        run.output_tokens_per_s,
        preemptions,
        sum(one.recomputed_tokens for one in timings),
        sum(one.swapped_blocks for one in timings),
    )


def settings(mode: str, swap_space: float = 1.0) -> SchedulingSettings:
    """swap_space: GiB."""
    return SchedulingSettings.of(preemption=mode, swap_space=None if mode == "recompute" else swap_space)


def crossover(number: int) -> tuple[list[list[object]], float]:
    """Rows by speed of copying, and how far `auto` falls behind the better way at worst."""
    rows: list[list[object]] = []
    worst = 0.0
    for milliseconds in COPIES_MS:
        cost = replace(COST, moved_block=milliseconds / 1e3)
        found = {
            mode: serve(
                virtual_engine(settings(mode), cost, num_blocks=BLOCKS, host_blocks=HOST_BLOCKS),
                requests(number, VOCABULARY),
            )
            for mode in MODES
        }
        best = max(found["recompute"].tokens_per_s, found["swap"].tokens_per_s)
        behind = 1 - found["auto"].tokens_per_s / best
        worst = max(worst, behind)
        rows.append([f"{milliseconds:g}", *cells(found), f"{behind:+.1%}"])
    return rows, worst


def cells(found: dict[str, Found]) -> list[str]:
    speeds = [f"{found[mode].tokens_per_s:,.1f}" for mode in MODES]
    counts = [f"{found[mode].preemptions} / {found[mode].recomputed:,} / {found[mode].swapped:,}" for mode in MODES]
    return [*speeds, *counts]


def real(number: int, repeats: int) -> tuple[list[object], float]:
    """Medians of the speeds on the real engine, ways in turn; and the milliseconds that copying a block takes there."""
    model = Model(num_blocks=BLOCKS + HOST_BLOCKS, max_model_len=1024)
    engine = EngineSettings(max_num_seqs=32, max_model_len=1024, num_blocks=BLOCKS)
    seen: dict[str, list[Found]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode in MODES:
            loop = model.loop(engine, settings(mode, swap_space=0.1))
            seen[mode].append(serve(loop, requests(number, model.vocab_size)))
    found = {
        mode: replace(runs[0], tokens_per_s=statistics.median(one.tokens_per_s for one in runs))
        for mode, runs in seen.items()
    }
    best = max(found["recompute"].tokens_per_s, found["swap"].tokens_per_s)
    return [*cells(found), f"{1 - found['auto'].tokens_per_s / best:+.1%}"], model.copy_seconds() * 1e3


HEAD = [
    *(f"{mode}, output tokens/s" for mode in MODES),
    *(f"{mode}: preempted / recomputed / swapped" for mode in MODES),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--real", type=int, default=0, metavar="REPEATS", help="also on the real engine, so often")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows, worst = crossover(arguments.requests)
    parts = [
        f"{BLOCKS} KV blocks of 16 tokens for 32 rows. Preempted sequences, recomputed tokens and blocks copied back "
        f"beside each speed. Virtual time, by the milliseconds that copying one block takes; `auto` is at most "
        f"{worst:.1%} behind the better way:",
        table(["copy, ms", *HEAD, "auto behind"], rows),
    ]
    if arguments.real:
        row, copy = real(arguments.requests // 8, arguments.real)
        parts += [
            f"The real engine, Qwen2.5-0.5B's shape in bf16; copying a block takes {copy:.3f} ms:",
            table([*HEAD, "auto behind"], [row]),
        ]
    body = "\n\n".join(parts)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.preemption --requests {arguments.requests} --real {arguments.real}"
        write_section("preemption", "Recompute, swap or the cheaper of them", command, body)


if __name__ == "__main__":
    main()
