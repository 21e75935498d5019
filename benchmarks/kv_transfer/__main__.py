"""Call: `python -m benchmarks.kv_transfer --part waits [--write]`; `--tiny` to see that it runs."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import benchmarks.kv_transfer as package
from benchmarks.comparison import publish
from benchmarks.kv_transfer import overlap
from benchmarks.kv_transfer.rates import BLOCK_BYTES, BLOCKS, rates
from benchmarks.kv_transfer.waits import CHUNKS, LINKS, OF_CHUNKS, allowed, waits
from benchmarks.results import table
from benchmarks.shapes import QWEN25_05B, TINY

LOOPBACK = 1e9  # bytes a second, about: `--part rates` has it


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def of_rates(repeats: int) -> str:
    of = statistics.median
    pulls, bare = rates(repeats)
    share = of([one / other for one, other in zip(pulls, bare, strict=True)])
    best = max(pulls), max(bare)
    row = [*(f"{one:.2f}" for one in (of(pulls), of(bare))), f"{100 * share:.0f} %"]
    row += [*(f"{one:.2f}" for one in best), f"{100 * best[0] / best[1]:.0f} %"]
    head = ["pulled, GB/s", "bare socket, GB/s", "share", "best pull", "best bare socket", "share"]
    return f"""{BLOCKS} blocks of {BLOCK_BYTES:,} bytes (4,096 tokens of Qwen2.5-0.5B's shape in bf16) between two \
processes on one host; medians of {repeats}, in turns, the share pair by pair; and the best of each.

{table(head, [row])}"""


def of_waits(shape: dict[str, object], prompts: int, picture: Path) -> str:
    layers, rows = int(str(shape["num_hidden_layers"])), []
    for link in LINKS:
        for chunk in CHUNKS:
            waited = waits(shape, chunk, link, prompts)
            asked = allowed(chunk, waited.block_bytes / layers, link.rate or LOOPBACK)
            rows.append([link.name, str(chunk), ms(asked)])
            seconds = waited.seconds.values()
            rows[-1] += [f"{ms(statistics.median(one))} ({ms(min(one))} to {ms(max(one))})" for one in seconds]
    overlap.draw(f"The last chunk of {CHUNKS[-1]} tokens, over {LINKS[-1].name}", waited.overlaps, picture)
    head = ["link", "chunk", "asked", "layer by layer", "block by block", "asked for afterwards"]
    return f"""Two engines of one thread each in one process, Qwen2.5-0.5B's shape, prompts of {OF_CHUNKS} chunks, by \
TCP: milliseconds from the prefill engine's last step until all blocks are where they are decoded, median (least to \
most) of {prompts} prompts. Asked are the transfer of two layers of the last chunk (on the loopback at \
{LOOPBACK / 1e9:g} GB/s) and 10 ms. In the first two modes the decode engine is asked before the prompt is computed. \
1 Gbit/s: a process between the two lets no more through.

{table(head, rows)}

![Keys and values of the last chunk while it is computed](pictures/{overlap.PICTURE.name})"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=package.__doc__)
    arguments.add_argument("--part", choices=["rates", "waits"], required=True)
    arguments.add_argument("--repeats", type=int, default=25, help="of a rate")
    arguments.add_argument("--prompts", type=int, default=5, help="for each mode")
    arguments.add_argument("--tiny", action="store_true", help="a shape that says nothing, to see that it runs")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/results.md, and its picture")
    given = arguments.parse_args()
    if given.part == "rates":
        publish("kv_transfer", "Keys and values between engines", of_rates(given.repeats), given.write, "rates")
        return
    with tempfile.TemporaryDirectory() as folder:
        picture = overlap.PICTURE if given.write else Path(folder) / "overlap.png"
        body = of_waits(TINY if given.tiny else QWEN25_05B, given.prompts, picture)
    publish("kv_transfer", "The first decode step behind its prompt", body, given.write, "waits")


if __name__ == "__main__":
    main()
