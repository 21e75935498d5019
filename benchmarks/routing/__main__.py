"""The command: which part is measured, and the section of docs/results.md that it makes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import write_section
from benchmarks.routing import __doc__ as about
from benchmarks.routing import goodput, scale
from benchmarks.routing.clusters import Engine
from inflight.simulate.fitted import FittedModel

TITLES = {
    "goodput": "Routing: goodput of four replicas, by policy and traffic",
    "scale": "Routing: how large a cluster the simulator bears",
}


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.part == "scale":
        size = asked.replicas or 64, asked.requests or 1_000_000
        body = scale.report(*size, asked.routers or scale.ROUTERS, asked.runs, asked.processes)
    else:
        engine = Engine(FittedModel.load(asked.step_model), asked.rows, asked.budget, asked.kv_tokens)
        body = goodput.report(engine, asked.replicas or 4, asked.requests or 1000, asked.seeds)
    print(body)
    if asked.write:
        given = [one for one in (sys.argv[1:] if arguments is None else arguments) if one != "--write"]
        command = " ".join(["python -m benchmarks.routing", *given])
        write_section(f"routing {asked.part}", TITLES[asked.part], command, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=about)
    parser.add_argument("--part", choices=list(TITLES), default="goodput")
    parser.add_argument(
        "--step-model",
        type=Path,
        default=Path(__file__).parent / "step-model.json",
        help="of `inflight calibrate`; else that of two cores and the shape of Qwen2.5-0.5B in int8",
    )
    parser.add_argument("--rows", type=int, default=16, help="that run at once (default 16)")
    parser.add_argument("--budget", type=int, default=256, help="tokens of a step (default 256)")
    parser.add_argument("--kv-tokens", type=int, default=32_768, help="that a replica's KV memory holds")
    parser.add_argument("--replicas", type=int, help="4, or 64 of scale")
    parser.add_argument("--requests", type=int, help="of a run: 1,000; of all runs of scale: 1,000,000")
    parser.add_argument("--routers", nargs="+", help=f"of scale: {' and '.join(scale.ROUTERS)}, or others")
    parser.add_argument(
        "--runs", type=int, default=5, choices=range(1, 6), help="independent ones, of scale (default 5)"
    )
    parser.add_argument("--processes", type=int, default=2, help="in which runs of scale go on (default 2)")
    parser.add_argument("--seeds", type=int, default=3, help="of goodput (default 3)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


if __name__ == "__main__":
    main()
