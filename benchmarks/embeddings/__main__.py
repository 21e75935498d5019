"""Vectors of texts beside other engines, on a model of a known shape with random weights.

Each engine runs in a process of its own, all of them loaded; they take turns, so that a machine whose speed drifts
blurs ratios little. `all`: every text is there at once. `online`: texts come as a Poisson process, at a share of what
the slowest engine of the comparison can do, so that all are asked the same. Vectors are compared with PyTorch's.

    benchmarks/peers/setup.sh ENVIRONMENTS embeddings
    python -m benchmarks.embeddings --environments ENVIRONMENTS --shapes minilm-l6 bge-base --write
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import log_line, publish, spread
from benchmarks.embeddings.export import SHAPES, VOCABULARY
from benchmarks.embeddings.runner import Job
from benchmarks.embeddings.texts import TAILS, arrivals, texts
from benchmarks.peers.tokenizer import write_tokenizer
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads

ROOT = Path(__file__).parents[2]
PEERS = {"torch": ("float32", "bfloat16"), "onnxruntime": ("float32",), "openvino": ("float32", "bfloat16")}


@dataclass
class Runner:
    """A process of one engine. padded: of this engine, texts in padded batches."""

    name: str
    process: subprocess.Popen[str]
    description: str = ""

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"The runner of {self.name} ended; its own words are above.")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main(given: Sequence[str] | None = None) -> None:
    arguments = _options().parse_args(given)
    if not (arguments.environments / "embeddings/bin/python").exists():
        raise SystemExit(
            f"{arguments.environments} has no environment named embeddings, which writes the models; "
            f"benchmarks/peers/setup.sh {arguments.environments} embeddings makes it."
        )
    with tempfile.TemporaryDirectory() as folder:
        for shape in arguments.shapes:
            model = Path(arguments.models or folder) / shape
            if not (model / "model.onnx").exists():
                log_line(f"Writing {shape} ...")
                if _run(arguments.environments, "export", str(model), shape).wait():
                    raise SystemExit(f"{shape} was not written; the words of what failed are above.")
                write_tokenizer(model, VOCABULARY)
            rows = []
            for precision in arguments.precisions:
                for tail in arguments.tails:
                    rows += _measured(arguments, model, shape, precision, tail)
            title = f"Vectors of texts beside other engines: {shape}'s shape"
            publish("embeddings", title, _report(rows, arguments), arguments.write, variant=shape)


def _measured(arguments: argparse.Namespace, model: Path, shape: str, precision: str, tail: str) -> list[list[str]]:
    """A row of the table for each engine."""
    threads = int(resolve_threads(EngineSettings()).value)
    job = Job(str(model), precision, threads, tail, arguments.count, VOCABULARY, seed=7)
    tokens = sum(map(len, texts(job.count, TAILS[tail], VOCABULARY, job.seed)))
    names = ["inflight", "padded", *(name for name, known in PEERS.items() if precision in known)]
    runners = {name: _started(arguments, name, job) for name in names if name in arguments.engines}
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(arguments.rounds):
        for name in list(runners)[number % len(runners) :] + list(runners)[: number % len(runners)]:
            seconds[name].append(runners[name].ask(do="all")["seconds"])
        log_line(f"{shape} {precision} {tail}: round {number + 1} of {arguments.rounds}")
    cosines, latencies = _cosines(runners), _online(arguments, runners, seconds, job)
    rows = []
    for name, runner in runners.items():
        over = [a / b for a, b in zip(seconds[name], seconds["inflight"], strict=True)]
        rows.append(
            [
                f"{shape}, {precision}",
                tail,
                runner.description + (", padded" if name == "padded" else ""),
                f"{tokens / statistics.median(seconds[name]):,.0f}",
                "1" if name == "inflight" else spread(over),
                f"{cosines[name]:.6f}",
                f"{1e3 * float(np.percentile(latencies[name], 50)):,.0f}",
                f"{1e3 * float(np.percentile(latencies[name], 99)):,.0f}",
            ]
        )
    for runner in runners.values():
        runner.process.kill()
    return rows


def _cosines(runners: dict[str, Runner]) -> dict[str, float]:
    """The least of each engine's with PyTorch's."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, runner in runners.items():
            path = Path(folder) / f"{name}.npy"
            runner.ask(do="vectors", path=str(path))
            found[name] = np.load(path)
    own = found.get("torch", next(iter(found.values())))
    return {name: float((vectors * own).sum(1).min()) for name, vectors in found.items()}


def _online(
    arguments: argparse.Namespace, runners: dict[str, Runner], seconds: dict[str, list[float]], job: Job
) -> dict[str, list[float]]:
    """Latencies at a share of what the slowest but this engine's padded form can do; in turns, as `all`."""
    slowest = max(statistics.median(times) for name, times in seconds.items() if name != "padded")
    rate = arguments.load * job.count / slowest
    due = arrivals(min(job.count, int(rate * arguments.seconds) + 1), rate, seed=3).tolist()
    found: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(arguments.online_rounds):
        for name, runner in runners.items():
            found[name] += runner.ask(do="online", due=due)["latencies"]
    return found


def _started(arguments: argparse.Namespace, name: str, job: Job) -> Runner:
    module = "run_inflight" if name in ("inflight", "padded") else f"run_{name}"
    environments = None if name in ("inflight", "padded") else arguments.environments
    more = {"INFLIGHT_PADDED": "1"} if name == "padded" else {}
    runner = Runner(name, _run(environments, module, json.dumps(asdict(job)), **more))
    runner.description = runner.hear()["ready"]
    return runner


def _run(environments: Path | None, module: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    python = sys.executable if environments is None else str(environments / "embeddings" / "bin" / "python")
    return subprocess.Popen(
        [python, "-m", f"benchmarks.embeddings.{module}", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _report(rows: list[list[str]], arguments: argparse.Namespace) -> str:
    head = ["model", "lengths", "engine", "tokens/s", "seconds over inflight's", "cosine", "p50, ms", "p99, ms"]
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    tails = "; ".join(
        f"{name}: median {one.median:g}, spread {one.spread:g}, up to {one.longest}" for name, one in TAILS.items()
    )
    return (
        f"{arguments.count} texts of lognormal lengths ({tails} tokens), random weights, the tokens as ids. All at "
        f"once, in {arguments.rounds} turns: inflight puts texts one behind another, the others fill batches of 32 "
        "up, sorted by length. The cosine is the least with PyTorch's at the same precision. Latencies are of texts "
        f"that come at {arguments.load:.0%} of what the slowest engine can do; those that wait go together.\n\n{table}"
    )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="the folder that setup.sh made")
    parser.add_argument("--models", type=Path, help="where models are written, and kept (default: nowhere)")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["minilm-l6"])
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--tails", nargs="+", choices=list(TAILS), default=["usual", "heavy"])
    parser.add_argument("--engines", nargs="+", default=["inflight", "padded", *PEERS])
    parser.add_argument("--count", type=int, default=512, help="texts (default 512)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--seconds", type=float, default=10, help="that texts come, of each turn")
    parser.add_argument("--online-rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


if __name__ == "__main__":
    main()
