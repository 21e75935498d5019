"""Adapters: what they cost a step, what a cold one costs others, and fewer slots than adapters.

The command: which part is measured, and the section of docs/results.md that it makes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.adapters import cold, slots, steps
from benchmarks.adapters.files import write_adapters
from benchmarks.decoding import blocks, context
from benchmarks.engines import Model
from benchmarks.results import write_section

TITLES = {
    "steps": "Adapters: steps whose rows are spread over several",
    "cold": "Adapters: steps while a cold one is loaded",
    "slots": "Adapters: more of them than slots",
}
COUNTS = (1, 8, 16)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    most = {"steps": asked.legs * steps.LEG, "cold": asked.legs * cold.LONGEST, "slots": 256}[asked.part] + 64
    model = Model("qwen", max(2048, blocks(asked.rows, most)), context(most))
    with tempfile.TemporaryDirectory() as folder:
        adapters = write_adapters(Path(folder), model.weight_slices, max(COUNTS), asked.rank)
        if asked.part == "steps":
            body = steps.report(model, asked.rows, asked.legs, adapters, COUNTS, asked.rank)
        elif asked.part == "cold":
            body = cold.report(model, asked.rows, asked.legs, adapters, asked.rank)
        else:
            body = slots.report(model, adapters, asked.turns, asked.seconds, asked.rates, asked.rank)
    print(body)
    if asked.write:
        given = [one for one in (sys.argv[1:] if arguments is None else arguments) if one != "--write"]
        command = " ".join(["python -m benchmarks.adapters", *given])
        write_section(f"adapters {asked.part}", TITLES[asked.part], command, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--part", choices=list(TITLES), default="steps")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--legs", type=int, default=30, help="of steps and cold (default 30)")
    parser.add_argument("--turns", type=int, default=5, help="of slots (default 5)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a turn of slots (default 30)")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0], help="requests a second (default 1 2)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


if __name__ == "__main__":
    main()
