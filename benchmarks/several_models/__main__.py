"""The command: which part is measured, and the section of docs/results.md that it makes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gguf_shapes import write_gguf
from benchmarks.results import write_section
from benchmarks.several_models import equal_load, equals, neighbours, switch

TITLES = {
    "switch": "Several models: a switch beside a start",
    "equal-load": "Several models: two of equal load, room for one",
    "equals": "Several models: two of equal load, room for both",
    "neighbours": "Several models: a chat beside an embedder",
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.part == "neighbours":
        body = neighbours.report(asked.turns, asked.seconds)
    elif asked.part == "equals":
        body = equals.report(asked.turns, asked.seconds)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = write_gguf(Path(folder) / "qwen2.5-0.5b.gguf", "Q8_0")
            if asked.part == "switch":
                body = switch.report(file, asked.turns)
            else:
                body = equal_load.report(file, asked.rate, asked.seconds)
    print(body)
    if asked.write:
        given = [one for one in (sys.argv[1:] if arguments is None else arguments) if one != "--write"]
        command = " ".join(["python -m benchmarks.several_models", *given])
        write_section(f"several_models {asked.part}", TITLES[asked.part], command, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several_models", description=__doc__)
    parser.add_argument("--part", choices=list(TITLES), default="switch")
    parser.add_argument("--turns", type=int, default=10, help="of switch, equals and neighbours (default 10)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn, of equal-load (default 10)")
    parser.add_argument("--rate", type=float, default=2.0, help="calls a second of equal-load (default 2)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


if __name__ == "__main__":
    main()
