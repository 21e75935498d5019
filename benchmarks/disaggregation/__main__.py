"""Run as `python -m benchmarks.disaggregation published` or `… map`."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.disaggregation import __doc__ as about
from benchmarks.disaggregation import map as maps
from benchmarks.disaggregation import published
from benchmarks.results import write_section


def main() -> None:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("part", choices=["published", "map"])
    parser.add_argument("--write", action="store_true", help="write docs/results.md, and the map in docs/scaling.md")
    parser.add_argument("--kept", type=Path, default=Path("build/disaggregation.jsonl"), help="cells found so far")
    parser.add_argument("--as-far", action="store_true", help="report the cells that are there, and search no more")
    arguments = parser.parse_args()
    if arguments.part == "published":
        body, title = published.report(), "Disaggregated prefill and decode, beside published findings"
    else:
        found = maps.cells(arguments.kept, search=not arguments.as_far)
        body, title = maps.report(found), "Where disaggregated prefill and decode pays"
        if arguments.write:
            maps.write_map(found)
    print(body)
    if arguments.write:
        name = f"disaggregation {arguments.part}"
        write_section(name, title, f"python -m benchmarks.disaggregation {arguments.part}", body)


if __name__ == "__main__":
    main()
