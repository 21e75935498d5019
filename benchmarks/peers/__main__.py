"""The command: options, engines, rounds, and the section of docs/results.md."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import benchmarks.peers
import inflight
from benchmarks.comparison import log_line, spread
from benchmarks.peers import engines as known
from benchmarks.peers import record
from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.checkpoints import Checkpoints, Environments, ExportFailed
from benchmarks.peers.contest import ALIKE, Contest, Rules
from benchmarks.peers.engines import FOUR_BITS, PRECISIONS, Copy, Engine
from benchmarks.peers.load import busy_share
from benchmarks.peers.report import report
from benchmarks.peers.stepping import QUANTIZATION, Job
from benchmarks.peers.trained import Trained
from benchmarks.peers.trials import LOAD, QUICK, READING_BATCH, Sizes
from benchmarks.peers.workload import mixed
from benchmarks.results import write_section
from benchmarks.shapes import SHAPES
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads
from inflight.execution.backends import native
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.execution.sizes import kv_bytes_per_token
from inflight.models.registry import read_folder, read_spec

_MODEL_LEN = 4096
_KINDS: dict[str, Literal["bf16", "int8"]] = {"bfloat16": "bf16", "int8": "int8"}
_PEAK_PROBES = 20  # with pauses between, about six seconds
PEERS = ("llama", "openvino", "onnxruntime", "vllm")  # by the names that setup.sh gives their environments
TRAINED = ("gemma3-270m", "smollm2")  # models whose answers are judged, too
_SPARE = 1.1  # KV memory beyond what the requests hold: blocks that are not full


def main(given: Sequence[str] | None = None) -> None:
    arguments = _options().parse_args(given)
    sizes = QUICK if arguments.quick else Sizes()
    trained = Trained(arguments.model) if arguments.model in TRAINED else None
    checkpoints = _checkpoints(arguments, trained)
    participants = _participants(arguments, checkpoints, trained)
    missing = {engine.python: sentence for engine in participants if (sentence := engine.missing)}
    present = [engine for engine in participants if not engine.missing]
    for python, sentence in missing.items():
        log_line(f"{sentence} ({python} was looked for)")
    contests = [_contest(precision, present, arguments, sizes) for precision in arguments.precisions]
    if trained is not None:
        for contest in contests:
            contest.judge = trained.judge(contest.precision, checkpoints)
    peaks = _peaks(_threads(arguments))
    if arguments.record and arguments.record.exists():
        record.read(arguments.record, contests)
    rounds = _measure(contests, arguments)
    if not rounds:
        log_line(f"The checkpoints are in {arguments.folder}; --rounds 0 measures nothing, and no record was given.")
        return
    again = _peaks(_threads(arguments))  # the machine may have been busy before
    peaks = {name: max(peak, again[name]) for name, peak in peaks.items()}
    tables = report(contests, {contest.precision: _ceilings(contest, peaks) for contest in contests})
    loads = [load for contest in contests for load in contest.loads.values()]
    body = "\n\n".join([_introduction(arguments, sizes, rounds, loads), *missing.values(), tables])
    for place in filter(None, (arguments.folder, arguments.environments)):  # where an engine's last words name it
        body = body.replace(str(place.resolve()), "FOLDER")
    print(body)
    if arguments.write:
        # In 4 bits a round of one precision takes minutes: each has a section of its own.
        held = f" in {' and '.join(arguments.precisions)}" if set(arguments.precisions) <= set(FOUR_BITS) else ""
        name, of = f"{arguments.model}{held}", f"shape{held}"
        if arguments.model in TRAINED:
            only_file = arguments.precisions == ["file"]
            name, of = (arguments.model, "file") if only_file else (f"{arguments.model} weights", "weights")
        title = f"Beside other engines: {arguments.model}'s {of}"
        write_section(f"peers {name}", title, _command(arguments, rounds), body)


def _measure(contests: Sequence[Contest], arguments: argparse.Namespace) -> int:
    """Rounds through all contests after those that are on record, as many as are asked for and as the time allows; how
    many there are now. A first round is always whole, a later one may end between two contests."""
    end = time.monotonic() + 60 * arguments.minutes
    first = max((figure.round + 1 for contest in contests for figure in contest.figures), default=0)
    more = (1 if arguments.quick else 3) if arguments.rounds is None else arguments.rounds
    for number in range(first, first + more):
        for contest in contests:
            if number > first and time.monotonic() > end:
                return number + (contest is not contests[0])
            contest.round(number)
            if arguments.record:
                record.write(arguments.record, contests)
    return first + more


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=benchmarks.peers.__doc__,
    )
    parser.add_argument("--folder", type=Path, required=True, help="that setup.sh was given; checkpoints go there too")
    parser.add_argument(
        "--environments", type=Path, help="that setup.sh was given, where checkpoints are elsewhere (default FOLDER)"
    )
    parser.add_argument(
        "--model",
        choices=[*SHAPES, *TRAINED],
        default="qwen2.5-0.5b",
        help="shape, of random weights, or a trained model, whose answers are judged, too",
    )
    parser.add_argument(
        "--precisions", type=_some_of(PRECISIONS), default=["bf16", "int8"], help=f"some of {','.join(PRECISIONS)}"
    )
    parser.add_argument("--peers", type=_some_of(PEERS), default=list(PEERS), help=f"some of {','.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="more through all engines (default 3, with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="decoding of up to 32 rows, prompts of 512 and no mix, in short runs"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="after which nothing is begun but what the first round lacks"
    )
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


def _some_of(all_names: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads names between commas."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in all_names:
                raise argparse.ArgumentTypeError(f"{name} is unknown; there are {', '.join(all_names)}")
        return given

    return names


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} has no =; give NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:  # a word
        return name, value


def _pythons(arguments: argparse.Namespace) -> dict[str, Path]:
    made = (arguments.environments or arguments.folder.resolve()).absolute()
    return {name: made / name / "bin/python" for name in PEERS}


def _environments(arguments: argparse.Namespace) -> Environments:
    pythons = _pythons(arguments)
    return Environments(pythons["llama"], pythons["openvino"], pythons["onnxruntime"])


def _checkpoints(arguments: argparse.Namespace, trained: Trained | None) -> Checkpoints:
    place = arguments.folder.resolve() / "models" / arguments.model
    write = None if trained is None else trained.write
    return Checkpoints(place, SHAPES.get(arguments.model, {}), _environments(arguments), write)


def _participants(arguments: argparse.Namespace, checkpoints: Checkpoints, trained: Trained | None) -> list[Engine]:
    pythons, environments = _pythons(arguments), _environments(arguments)
    source = Path(inflight.__file__).parents[1]
    peers = {
        "llama": lambda: known.llama_cpp(checkpoints, environments),
        "openvino": lambda: known.openvino(checkpoints, environments.openvino, 128 if trained is None else 64),
        "onnxruntime": lambda: known.onnxruntime(checkpoints, environments.onnxruntime),
        "vllm": lambda: known.vllm(checkpoints, pythons["vllm"], arguments.folder.resolve() / "cache"),
    }
    found = [known.inflight(checkpoints, source), *(peers[name]() for name in PEERS if name in arguments.peers)]
    if trained is None:
        return found
    return [known.with_file(one, trained.file) if one.name in ("inflight", "llama.cpp") else one for one in found]


def _contest(precision: str, present: Sequence[Engine], arguments: argparse.Namespace, sizes: Sizes) -> Contest:
    able = [engine for engine in present if precision in engine.models]
    copies: dict[str, Copy] = {}
    absent: dict[str, str] = {}
    for engine in able:
        try:
            copies[engine.name] = engine.models[precision]()
        except ExportFailed as failure:
            absent[engine.name] = f"{engine.name} is left out of {precision}: {failure}."
            log_line(absent[engine.name])
    threads = _threads(arguments)
    kv_gib = math.ceil(_SPARE * sizes.kv_tokens() * _kv_bytes_per_token(arguments.model) / 2**30)
    jobs = {
        name: Job(
            model=str(copy.place),
            precision=precision,
            threads=threads,
            max_num_seqs=sizes.rows(),
            row_tokens=sizes.row_tokens(),
            max_model_len=_MODEL_LEN,
            kv_gib=kv_gib,
            settings=dict(arguments.set) if name == "inflight" else {},
        )
        for name, copy in copies.items()
    }
    rules = Rules(lambda: native.read_bandwidth_bytes_per_s(threads), busy_share, arguments.alike)
    return Contest(precision, able, jobs, copies, sizes, rules, absent=absent)


def _kv_bytes_per_token(model: str) -> int:
    spec = read_folder(pull(CATALOGUE[model]), to_run=True) if model in TRAINED else read_spec(SHAPES[model])
    return kv_bytes_per_token(spec, "bfloat16")


def _ceilings(contest: Contest, peaks: Mapping[str, float]) -> Ceilings | None:
    """None where inflight did not take part."""
    job = contest.jobs.get("inflight")
    if job is None:
        return None
    return Ceilings(read_folder(Path(job.model), to_run=True), QUANTIZATION.get(contest.precision, "none"), peaks)


def _peaks(threads: int) -> dict[str, float]:
    """FLOP/s by how numbers are held."""
    return {name: _peak(kind, threads) for name, kind in _KINDS.items()}


def _peak(kind: Literal["bf16", "int8"], threads: int) -> float:
    """The best of some seconds: a moment in which others use the cores would pass for a slower machine."""
    found = []
    for _ in range(_PEAK_PROBES):
        time.sleep(0.2)
        found.append(native.peak_flops(kind, threads))
    return max(found)


def _threads(arguments: argparse.Namespace) -> int:
    return int(resolve_threads(EngineSettings(threads=arguments.threads)).value)


def _introduction(arguments: argparse.Namespace, sizes: Sizes, rounds: int, loads: Sequence[float]) -> str:
    threads = _threads(arguments)
    taken = (
        f"Others took {spread([100 * load for load in loads], 0, ' %')} of the cores before a round. " if loads else ""
    )
    return (
        f"{_of_which_weights(arguments)}, {threads} threads, {sizes.rows()} rows, greedy, prompts as "
        "token ids, each engine through its own Python API in a process of its own, taking turns; inflight's kernels "
        f"are {native.NativeBackend('bfloat16', threads).isa}. {taken}Medians of {rounds} "
        f"{'rounds' if rounds > 1 else 'round'}; a ratio is taken within a round, to the best peer, with least and "
        f"greatest in brackets. Decoding: {sizes.decode_outputs} tokens of each row after a prompt of "
        f"{sizes.decode_prompt}. {_mix(sizes)}"
        "First token: from starting the process, with the model's files in the page cache and modules compiled. "
        "Peak resident: of the process, pages of the model's files among it. GB/s: read bandwidth around the "
        f"runs. Decoding of up to {READING_BATCH} rows may wait for memory, and counts where that was within "
        f"{arguments.alike:.0%} for all engines. The ceiling's ratio is that of an engine which does nothing but "
        "read at the bandwidth around inflight's run and compute at the machine's peak, both at once."
    )


def _of_which_weights(arguments: argparse.Namespace) -> str:
    if arguments.model not in TRAINED:
        return f"{arguments.model}'s random weights"
    if arguments.precisions == ["file"]:
        return f"The file of {arguments.model}"
    return (
        f"{arguments.model}'s weights, each moved by up to half a step of the grid of its file and rounded to bf16 "
        "(but in `file`), of which every engine's own tool makes its copy; KL(float32 ‖ engine) in nats over the same "
        "weights"
    )


def _mix(sizes: Sizes) -> str:
    if not sizes.mixed:
        return ""
    mix = mixed(sizes.mixed)
    prompts, outputs = sum(len(one.prompt) for one in mix), sum(one.output_tokens for one in mix)
    return (
        f"Mixed: {len(mix)} requests with {prompts:,} prompt and {outputs:,} output tokens of lognormal lengths, at "
        f"once, and as Poisson arrivals at {LOAD:.0%} of what the best peer did at once (p99 TTFT rests on {len(mix)} "
        f"samples a round, p99 ITL on {outputs - len(mix):,}). "
    )


def _command(arguments: argparse.Namespace, rounds: int) -> str:
    """As a reader would give it: with a folder of his own."""
    words = ["python -m benchmarks.peers --folder FOLDER --model", arguments.model]
    words += ["--precisions", ",".join(arguments.precisions)]
    words += ["--peers", ",".join(arguments.peers)] if arguments.peers != list(PEERS) else []
    words += ["--quick"] if arguments.quick else []
    words += ["--rounds", str(rounds)]
    words += [f"--alike {arguments.alike:g}"] if arguments.alike != ALIKE else []
    words += [f"--set {name}={json.dumps(value)}" for name, value in arguments.set]
    return " ".join(words)


if __name__ == "__main__":
    main()
