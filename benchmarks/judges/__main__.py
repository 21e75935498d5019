"""The command: `python -m benchmarks.judges NAME…`, `--write` for docs/results/judges.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from benchmarks.comparison import log_line
from benchmarks.judges import bfcl, conformance, lm_eval, open_webui
from benchmarks.judges.aiperf import AIPerf
from benchmarks.judges.genai_bench import GenAIBench
from benchmarks.judges.guidellm import GuideLLM
from benchmarks.judges.inference_perf import InferencePerf
from benchmarks.judges.judge import Judge, Load
from benchmarks.judges.loadgen import LoadGen
from benchmarks.judges.run import BUILT_IN, HEAD, Seen, run, table_rows
from benchmarks.judges.sglang_bench import SGLangBench
from benchmarks.judges.vllm_bench import VLLMBench
from benchmarks.results import table, write_section

JUDGES: dict[str, Judge] = {
    judge.name: judge
    for judge in (
        VLLMBench("random"),
        VLLMBench("timed_trace"),
        VLLMBench("prefix_repetition"),
        AIPerf(),
        InferencePerf(),
        GuideLLM(),
        LoadGen(),
        GenAIBench(),
        SGLangBench(),
    )
}
# Judges of answers, not of loads; each has options of its own.
JUDGES_OF_ANSWERS: dict[str, Callable[[Sequence[str]], None]] = {
    "conformance": conformance.main,
    "bfcl": bfcl.main,
    "lm-eval": lm_eval.main,
    "open-webui": open_webui.main,
}
# Below half of what one core computes, so that neither queue nor client is the bottleneck.
LOADS = {
    "smollm2": Load(requests=48, rate=1.2, concurrency=2, input_tokens=256, output_tokens=32),
    BUILT_IN: Load(requests=480, rate=12, concurrency=2, input_tokens=256, output_tokens=32),
}


def main(given: Sequence[str] | None = None) -> None:
    """Run the judges that are named, and print or write a table of each."""
    given = sys.argv[1:] if given is None else given
    if given and given[0] in JUDGES_OF_ANSWERS:
        JUDGES_OF_ANSWERS[given[0]](given[1:])
        return
    of_answers = f"{', '.join(JUDGES_OF_ANSWERS)} take options of their own"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges", description=__doc__, epilog=of_answers)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(JUDGES)}; all where none is named")
    parser.add_argument("--model", choices=list(LOADS), default="smollm2", help="(default smollm2)")
    parser.add_argument("--requests", type=int, help="how many, instead of the model's usual number")
    parser.add_argument("--rate", type=float, help="requests per second of those that have a rate")
    parser.add_argument("--write", action="store_true", help="write the sections of docs/results/judges.md")
    arguments = parser.parse_args(given)
    if unknown := set(arguments.names) - set(JUDGES):
        parser.error(f"{min(unknown)!r} is unknown; the judges are {', '.join(JUDGES)}.")
    load = LOADS[arguments.model]
    load = Load(
        arguments.requests or load.requests,
        arguments.rate or load.rate,
        load.concurrency,
        load.input_tokens,
        load.output_tokens,
    )
    for name in arguments.names or JUDGES:
        log_line(f"{name} on {arguments.model}")
        seen = run(JUDGES[name], arguments.model, load)
        body = _body(seen)
        print(f"{seen.judge.title}, {seen.model}\n\n{body}\n")
        if arguments.write:
            command = f"python -m benchmarks.judges {name} --model {arguments.model}"
            write_section(f"judges {name} {seen.model}", f"{seen.judge.title}: {seen.model}", command, body)


def _body(seen: Seen) -> str:
    load = seen.load
    asked = (
        f"{load.requests} requests of {load.input_tokens} tokens with answers of {load.output_tokens}. Load of the "
        f"machine at the end: {os.getloadavg()[0]:.1f}."
    )
    return "\n\n".join([asked, *seen.judge.notes, table(HEAD, table_rows(seen))])


if __name__ == "__main__":
    main()
