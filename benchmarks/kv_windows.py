"""How many sequences run at once where layers with a window keep only that, in the memory of engines that keep all.

Five layers with a window of 512 tokens to one without, sequences of 8k tokens, on a simulated device in virtual time:
what is counted is blocks. A block of one of the six KV groups has a sixth of the bytes of one that holds all layers.
"""

from __future__ import annotations

import argparse
import random
import statistics

from benchmarks.comparison import publish
from benchmarks.drive import Observer, drive
from benchmarks.engines import simulated_loop
from benchmarks.results import table
from benchmarks.virtual import COST
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

BLOCK, ROWS, VOCAB = 16, 128, 32_000
WINDOWS = (0, 512, 512, 512, 512, 512)
PROMPT, OUTPUT = 7_168, 1_024


def running(windows: tuple[int, ...], sequences: int, requests: int) -> list[str]:
    """In memory for so many sequences without windows: mean and most running while others wait, and preemptions."""
    length = PROMPT + OUTPUT
    num_blocks = sequences * (length // BLOCK) * len(windows)
    settings = EngineSettings(max_num_seqs=ROWS, max_model_len=length, num_blocks=num_blocks, block_size=BLOCK)
    observer, chance = Observer(), random.Random(1)
    capacity = Capacity(num_blocks, BLOCK, ROWS, length, VOCAB, windows=windows)
    loop = simulated_loop(capacity, settings, SchedulingSettings.of(), COST, observer)
    asked = [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(chance.randrange(VOCAB) for _ in range(PROMPT)),
            params=SamplingParams(max_tokens=OUTPUT, ignore_eos=True),
            forced_output_tokens=OUTPUT,
        )
        for number in range(requests)
    ]
    drive(loop, asked, observer.after)
    mean = statistics.mean(observer.running_at_most)
    return [f"{mean:.1f}", str(max(observer.running)), str(observer.preemptions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=4, help="memory for so many sequences without windows")
    parser.add_argument("--requests", type=int, default=64, help="all at once")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    kept, windowed = (running(one, arguments.sequences, arguments.requests) for one in ((0,), WINDOWS))
    ratio = float(windowed[0]) / float(kept[0])
    body = table(
        ["layers with a window", "mean running", "most running", "preemptions"],
        [["keep all tokens", *kept], ["keep their window", *windowed], ["ratio", f"{ratio:.2f}×", "", ""]],
    )
    sizes = (
        f"Five layers with a window of {WINDOWS[1]} tokens to one without, memory for {arguments.sequences} sequences "
        f"of {PROMPT + OUTPUT:,} tokens where all layers keep all, {arguments.requests} requests of {PROMPT:,} prompt "
        f"and {OUTPUT:,} output tokens at once, on a simulated device. Means are over steps in which others waited."
    )
    publish("kv_windows", "KV memory of layers with a window", f"{sizes}\n\n{body}", arguments.write)


if __name__ == "__main__":
    main()
