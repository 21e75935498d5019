"""The command: options, engines, rounds, and the section of docs/results.md."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import benchmarks.peers
import inflight
from benchmarks.comparison import tell
from benchmarks.peers import engines as known
from benchmarks.peers import record
from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.checkpoints import Checkpoints, ExportFailed
from benchmarks.peers.contest import ALIKE, Contest, Rules
from benchmarks.peers.engines import PRECISIONS, Engine
from benchmarks.peers.report import report
from benchmarks.peers.stepping import Job
from benchmarks.peers.trials import LOAD, QUICK, READING_BATCH, Sizes
from benchmarks.peers.workload import mixed
from benchmarks.results import write_section
from benchmarks.shapes import SHAPES
from inflight.config.engine import EngineSettings, resolve_threads
from inflight.execution.backends import native
from inflight.execution.backends.protocol import Quantization
from inflight.execution.sizes import kv_bytes_per_token
from inflight.models.registry import read_folder

_ROWS, _MODEL_LEN = 64, 4096
QUANTIZATION: dict[str, Quantization] = {"bf16": "none", "int8": "int8", "int8-all": "int8-all"}
_PEAK_PROBES = 20  # with pauses between, about six seconds
_SPARE = 1.1  # KV memory beyond what the requests hold: blocks that are not full


def main(given: Sequence[str] | None = None) -> None:
    arguments = _options().parse_args(given)
    shape = SHAPES[arguments.model]
    sizes = QUICK if arguments.quick else Sizes()
    more = (1 if arguments.quick else 3) if arguments.rounds is None else arguments.rounds
    participants = _participants(arguments, shape)
    missing = {engine.python: sentence for engine in participants if (sentence := engine.missing)}
    present = [engine for engine in participants if not engine.missing]
    for python, sentence in missing.items():
        tell(f"{sentence} ({python} was looked for)")
    contests = [_contest(precision, present, arguments, sizes) for precision in arguments.precisions]
    if arguments.record and arguments.record.exists():
        record.read(arguments.record, contests)
    first = max((figure.round + 1 for contest in contests for figure in contest.figures), default=0)
    for number in range(first, first + more):
        for contest in contests:
            contest.round(number)
            if arguments.record:
                record.write(arguments.record, contests)
    rounds = first + more
    notes = {name: {one.name: one.notes[name] for one in present if name in one.notes} for name in PRECISIONS}
    ceilings = {contest.precision: _ceilings(contest) for contest in contests}
    told = report(contests, notes, ceilings)
    body = "\n\n".join([_introduction(arguments, sizes, rounds), *missing.values(), told])
    body = body.replace(str(arguments.folder.resolve()), "FOLDER")  # where an engine's last words name it
    print(body)
    if arguments.write:
        title = f"Beside vLLM and OpenVINO GenAI: {arguments.model}'s shape"
        write_section(f"peers {arguments.model}", title, _command(arguments, rounds), body)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=benchmarks.peers.__doc__,
    )
    parser.add_argument("--folder", type=Path, required=True, help="that setup.sh was given; checkpoints go there too")
    parser.add_argument("--vllm-python", type=Path, help="another environment's (default FOLDER/vllm/bin/python)")
    parser.add_argument("--openvino-python", type=Path, help="the same (default FOLDER/openvino/bin/python)")
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-0.5b", help="shape, of random weights")
    parser.add_argument("--precisions", type=_precisions, default=["bf16", "int8"], help="some of bf16,int8,int8-all")
    parser.add_argument("--rounds", type=int, help="more through all engines (default 3, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="fewer batches and requests, to try")
    parser.add_argument("--threads", type=int, help="of each engine (default: the cores this process may use)")
    parser.add_argument(
        "--alike",
        type=float,
        default=ALIKE,
        help="a trial that may wait for memory counts if the bandwidth was that alike",
    )
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of inflight's EngineSettings, for example max_num_batched_tokens=256 (repeatable)",
    )
    parser.add_argument("--record", type=Path, help="file for every figure, JSON lines; rounds that it holds count too")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def _precisions(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{name} is unknown; there are {', '.join(PRECISIONS)}")
    return names


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} has no =; give NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:  # a word
        return name, value


def _participants(arguments: argparse.Namespace, shape: dict[str, object]) -> list[Engine]:
    folder = arguments.folder.resolve()
    vllm = (arguments.vllm_python or folder / "vllm/bin/python").absolute()
    openvino = (arguments.openvino_python or folder / "openvino/bin/python").absolute()
    checkpoints = Checkpoints(folder / "models" / arguments.model, shape, openvino)
    source = Path(inflight.__file__).parents[1]
    return [
        known.inflight(checkpoints, source),
        known.vllm(checkpoints, vllm, folder / "cache"),
        known.openvino(checkpoints, openvino),
    ]


def _contest(precision: str, present: Sequence[Engine], arguments: argparse.Namespace, sizes: Sizes) -> Contest:
    able = [engine for engine in present if precision in engine.models]
    models, absent = {}, {}
    for engine in able:
        try:
            models[engine.name] = engine.models[precision]()
        except ExportFailed as failure:
            absent[engine.name] = f"{engine.name} is left out of {precision}: {failure}."
    threads = _threads(arguments)
    config = read_folder(models["inflight"], to_run=True)
    kv_bytes = _SPARE * sizes.kv_tokens() * kv_bytes_per_token(config, "bfloat16")
    jobs = {
        name: Job(
            model=str(model),
            precision=precision,
            threads=threads,
            max_num_seqs=_ROWS,
            max_model_len=_MODEL_LEN,
            kv_gib=math.ceil(kv_bytes / 2**30),
            settings=dict(arguments.set) if name == "inflight" else {},
        )
        for name, model in models.items()
    }
    rules = Rules(lambda: native.read_bandwidth_bytes_per_s(threads), arguments.alike)
    return Contest(precision, able, jobs, sizes, rules, absent=absent)


def _ceilings(contest: Contest) -> Ceilings:
    job = contest.jobs["inflight"]
    kinds: dict[str, Literal["bf16", "int8"]] = {"bfloat16": "bf16", "int8": "int8"}
    peaks = {name: _peak(kind, job.threads) for name, kind in kinds.items()}
    return Ceilings(read_folder(Path(job.model), to_run=True), QUANTIZATION[contest.precision], peaks)


def _peak(kind: Literal["bf16", "int8"], threads: int) -> float:
    """The best of some seconds: a moment in which others use the cores would pass for a slower machine."""
    found = []
    for _ in range(_PEAK_PROBES):
        time.sleep(0.2)
        found.append(native.peak_flops(kind, threads))
    return max(found)


def _threads(arguments: argparse.Namespace) -> int:
    return int(resolve_threads(EngineSettings(threads=arguments.threads)).value)


def _introduction(arguments: argparse.Namespace, sizes: Sizes, rounds: int) -> str:
    mix = mixed(sizes.mixed)
    prompts, outputs = sum(len(one.prompt) for one in mix), sum(one.output_tokens for one in mix)
    return (
        f"{arguments.model}'s shape with random weights, {_threads(arguments)} threads, {_ROWS} rows, greedy, prompts "
        "as token ids, each engine through its own Python API in a process of its own, taking turns. Medians of "
        f"{rounds} {'rounds' if rounds > 1 else 'round'}; a ratio is taken within a round, to the best peer, with "
        f"least and greatest in brackets. Mixed: {len(mix)} requests with {prompts:,} prompt and {outputs:,} output "
        f"tokens of lognormal lengths, at once, and as Poisson arrivals at {LOAD:.0%} of what the best peer did at "
        f"once (p99 TTFT rests on {len(mix)} samples a round, p99 ITL on {outputs - len(mix):,}). First token: from "
        "starting the process, with the model's files in the page cache. GB/s: read bandwidth around the runs. "
        f"Decoding of up to {READING_BATCH} rows may wait for memory, and counts where that was within "
        f"{arguments.alike:.0%} for all engines. The ceiling's ratio is that of an engine which does nothing but read "
        "at the bandwidth around inflight's run and compute at the machine's peak, both at once."
    )


def _command(arguments: argparse.Namespace, rounds: int) -> str:
    """As a reader would give it: with a folder of his own."""
    words = ["python -m benchmarks.peers --folder FOLDER --model", arguments.model]
    words += ["--precisions", ",".join(arguments.precisions)]
    words += ["--quick"] if arguments.quick else []
    words += ["--rounds", str(rounds)]
    words += [f"--alike {arguments.alike:g}"] if arguments.alike != ALIKE else []
    words += [f"--set {name}={json.dumps(value)}" for name, value in arguments.set]
    return " ".join(words)


if __name__ == "__main__":
    main()
