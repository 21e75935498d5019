"""What real models answer in each precision, as served, beside their own weights in float32 and beside llama.cpp.

    benchmarks/peers/setup.sh FOLDER llama
    python -m benchmarks.real_models --environments FOLDER --write

Without --environments llama.cpp is left out. `--quick` asks two passages in the precisions of the file alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import tell
from benchmarks.real_models import engines
from benchmarks.real_models.agreement import Agreement, agreement
from benchmarks.real_models.answers import Answers, Questions
from benchmarks.real_models.engines import REFERENCE, WAYS, EngineFailed, Runner, Way
from benchmarks.real_models.passages import passages
from benchmarks.results import table
from inflight.execution.backends import native
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.text import Tokenizer

GENERATIVE = ("gemma3-270m", "smollm2")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test: its file, the files of questions and of the reference's answers, and the folder in bf16."""

    name: str
    file: Path
    folder: Path
    questions: Path
    reference: Answers


def main(given: Sequence[str] | None = None) -> None:
    arguments = _options().parse_args(given)
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.models:
            subject = _subject(name, Path(scratch), arguments.quick)
            print(_report(subject, list(_rows(subject, arguments))), flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=GENERATIVE, default=GENERATIVE)
    parser.add_argument("--environments", type=Path, help="the folder that benchmarks/peers/setup.sh was given")
    parser.add_argument("--quick", action="store_true", help="two passages, and the precisions of the file alone")
    return parser


def _subject(name: str, scratch: Path, quick: bool) -> Subject:
    file = pull(CATALOGUE[name])
    texts = passages(Tokenizer.load(file))
    questions, folder = scratch / f"{name}.questions.npz", scratch / f"{name}.bf16"
    Questions(texts[:2] if quick else texts).save(questions)
    tell(f"{name}: the reference")
    settings = {} if quick else {"folder": str(folder)}
    reference = REFERENCE.run(file, questions, scratch / "reference.npz", settings)
    return Subject(name, file, folder, questions, reference)


def _rows(subject: Subject, arguments: argparse.Namespace) -> Iterator[tuple[str, str, Agreement]]:
    isa = native.available_isas()[0]
    peer = engines.llama(arguments.environments) if arguments.environments else None
    if peer is None:
        tell("llama.cpp is left out; benchmarks/peers/setup.sh FOLDER llama makes it, --environments FOLDER names it.")
    else:
        yield from _row(subject, peer, Way("llama.cpp, GGUF"), "native")
    for way in WAYS:
        if not (arguments.quick and way.of_folder):
            yield from _row(subject, engines.inflight(isa), way, isa)


def _row(subject: Subject, runner: Runner, way: Way, isa: str) -> Iterator[tuple[str, str, Agreement]]:
    tell(f"{subject.name}: {way.name}, {isa}")
    model = subject.folder if way.of_folder else subject.file
    try:
        found = runner.run(model, subject.questions, subject.questions.with_suffix(".answers.npz"), way.settings)
    except EngineFailed as error:
        tell(str(error))
        return
    yield way.name, isa, agreement(subject.reference, found)


def _report(subject: Subject, rows: Sequence[tuple[str, str, Agreement]]) -> str:
    head = ["held as", "instructions", "KL mean", "median", "p99", "top-1", "NLL − reference (s.e.)", "perplexity"]
    head.append("another choice where close")
    lines = [
        [
            name,
            isa,
            f"{one.kl_mean:.5f}",
            f"{one.kl_median:.5f}",
            f"{one.kl_p99:.4f}",
            f"{one.same_best:.2%}",
            f"{one.loss:+.4f} ({one.loss_error:.4f})",
            f"{one.perplexity_ratio - 1:+.2%}",
            f"{one.other_where_close:.0%}",
        ]
        for name, isa, one in rows
    ]
    positions = f"{len(subject.reference.best):,} positions"
    return f"### {subject.name}\n\n{positions} against {subject.reference.about}.\n\n{table(head, lines)}\n"


if __name__ == "__main__":
    main()
