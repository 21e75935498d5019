"""lm-eval's scores of a model over this server beside its scores of the same file by transformers.

    python -m benchmarks.judges lm-eval --write

Three tasks of lm-eval's three kinds, made of texts of this project, since none can be downloaded: which of four halves
ends a sentence, the perplexity of passages, and sums that are written out. transformers computes in float32, as does
this server with `EXACT`; as served by default, activations are rounded.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line
from benchmarks.real_models.passages import sentences
from benchmarks.results import table, write_section
from benchmarks.served import Server
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from tests.foreign.environments import Environment

MODELS = ("smollm2", "gemma3-270m")
ENVIRONMENT = Environment("judge_lm_eval", Path(__file__).parent / "packages" / "lm_eval")
CHOICES, SUMS = 4, 24
EXACT = ("--load-format", "dequantize", "--dtype", "float32")
HEAD = ("task", "metric", "transformers, float32", "inflight, float32", "inflight", "standard error", "difference")
NOTES = (
    f"*inflight, float32*: `{' '.join(EXACT)}`. The difference is of *inflight*, as served by default. The client "
    "encodes texts with the tokenizer that transformers reads from the file. lm-eval's other tokenizer, the server's "
    "by `/tokenize`, leaves out the first token (BOS), also with `add_bos_token=True`; gemma3-270m needs it. "
    "Where a tokenizer adds BOS, lm-eval prepends another to *passages* and scores the second."
)
_SAVE_TOKENIZER = """
import sys, transformers
folder, file, to = sys.argv[1:]
transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(to)
"""
_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {kind}
"""
_ENDINGS = """doc_to_text: "{{prompt}}"
target_delimiter: " "
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
_PASSAGES = """doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
_SUMS = """doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], do_sample: false, temperature: 0.0, max_gen_toks: 8}
metric_list: [{metric: exact_match}]
"""
TASKS = {
    "endings": ("multiple_choice", _ENDINGS),
    "passages": ("loglikelihood_rolling", _PASSAGES),
    "sums": ("generate_until", _SUMS),
}


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a task. error: its standard error; 0 where lm-eval has none."""

    value: float
    error: float


def endings(count: int) -> list[dict[str, Any]]:
    """Return sentences cut in half, each with the second halves of three others among its choices."""
    halves = []
    for sentence in sentences(4 * count):
        words = sentence.split(" ")
        if len(words) >= 10:
            halves.append((" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])))
    draw, documents = random.Random(1), []
    for prompt, ending in halves[:count]:
        choices = [ending, *draw.sample([other for _, other in halves if other != ending], CHOICES - 1)]
        draw.shuffle(choices)
        documents.append({"prompt": prompt, "choices": choices, "answer": choices.index(ending)})
    return documents


def sums(count: int) -> list[dict[str, Any]]:
    draw = random.Random(2)
    shown = "".join(f"{one} + {two} = {one + two}\n" for one, two in ((2, 3), (5, 1), (4, 4), (7, 2)))
    drawn = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(count)]
    return [{"prompt": f"{shown}{one} + {two} =", "answer": f" {one + two}"} for one, two in drawn]


def passages(count: int) -> list[dict[str, Any]]:
    """Return texts of some hundred tokens, of eight sentences each."""
    found = sentences(8 * count)
    return [{"text": " ".join(found[begin : begin + 8])} for begin in range(0, len(found) - 7, 8)]


def write_tasks(folder: Path, scale: float) -> None:
    documents = {
        "endings": endings(round(48 * scale)),
        "passages": passages(round(5 * scale)),
        "sums": sums(round(SUMS * scale)),
    }
    for name, (kind, rest) in TASKS.items():
        data = folder / f"{name}.json"
        data.write_text(json.dumps(documents[name]), encoding="utf-8")
        head = _TASK.format(name=f"local_{name}", file=data, kind=kind)
        (folder / f"{name}.yaml").write_text(head + rest, encoding="utf-8")


def scores(folder: Path, model: str, arguments: dict[str, Any], name: str) -> dict[tuple[str, str], Score]:
    """Run lm-eval, and return its scores by task and metric."""
    given = ",".join(f"{key}={value}" for key, value in arguments.items())
    tasks = ",".join(f"local_{task}" for task in TASKS)
    asked = ["--model", model, "--model_args", given, "--tasks", tasks, "--include_path", str(folder)]
    output = folder / name
    asked += ["--device", "cpu"]
    ENVIRONMENT.run("lm-eval", "run", *asked, "--output_path", str(output), seconds=3600, OPENAI_API_KEY="none")
    (written,) = output.rglob("results*.json")
    found: dict[tuple[str, str], Score] = {}
    for task, metrics in json.loads(written.read_text(encoding="utf-8"))["results"].items():
        for key, value in metrics.items():
            metric, _, which = key.partition(",")
            if isinstance(value, float) and not metric.endswith("_stderr"):
                error = metrics.get(f"{metric}_stderr,{which}")
                found[task.removeprefix("local_"), metric] = Score(value, error if isinstance(error, float) else 0.0)
    return found


def compare(model: str, scale: float) -> list[tuple[str, ...]]:
    """Return a row for each metric, as HEAD has them."""
    ENVIRONMENT.make()
    file = pull(CATALOGUE[model])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder, scale)
        log_line(f"{model} by transformers")
        settings = {"pretrained": file.parent, "gguf_file": file.name, "dtype": "float32", "max_length": 2048}
        theirs = scores(folder, "hf", settings, "transformers")
        ENVIRONMENT.run(
            "python", "-c", _SAVE_TOKENIZER, str(file.parent), file.name, str(folder / "tokenizer"), seconds=1800
        )
        exact, ours = (served_scores(folder, model, options) for options in (EXACT, ()))
    return [
        (
            *key,
            *(f"{found.value:.4f}" for found in (score, exact[key], ours[key])),
            f"{score.error:.4f}" if score.error else "–",
            _difference(score, ours[key]),
        )
        for key, score in theirs.items()
    ]


def served_scores(folder: Path, model: str, options: Sequence[str]) -> dict[tuple[str, str], Score]:
    """Return the scores by a server with these options. folder: with the tasks and the client's tokenizer."""
    log_line(f"{model} by inflight {' '.join(options)}")
    with Server(model, "--served-model-name", model, "--max-model-len", "2048", *options) as server:
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        settings = {"model": model, "base_url": url, "max_length": 2048, "num_concurrent": 4, "max_retries": 1}
        settings |= {"tokenizer_backend": "huggingface", "tokenizer": folder / "tokenizer", "add_bos_token": True}
        return scores(folder, "local-completions", settings, "-".join(["inflight", *options]))


def _difference(theirs: Score, ours: Score) -> str:
    difference = ours.value - theirs.value
    if theirs.error:
        return f"{difference:+.4f}, {abs(difference) / theirs.error:.2f} standard errors"
    return f"{difference:+.4f}, {difference / theirs.value:+.2%}" if theirs.value else f"{difference:+.4f}"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges lm-eval", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--scale", type=float, default=1.0, help="number of documents, as a multiple (default 1)")
    parser.add_argument("--write", action="store_true", help="write the sections of docs/results/judges.md")
    arguments = parser.parse_args(given)
    for model in arguments.models:
        report = f"{NOTES}\n\n{table(HEAD, compare(model, arguments.scale))}"
        print(f"{model}\n\n{report}\n", flush=True)
        if arguments.write:
            scale = "" if arguments.scale == 1 else f" --scale {arguments.scale:g}"
            command = f"python -m benchmarks.judges lm-eval --models {model}{scale}"
            write_section(f"lm_eval {model}", f"lm-eval beside transformers: {model}", command, report)


if __name__ == "__main__":
    main()
