"""Measure what real models answer in each precision, as served, beside their own weights in float32 and beside
llama.cpp.

    benchmarks/peers/setup.sh FOLDER llama llama_avx2
    python -m benchmarks.real_models --environments FOLDER --write

Without --environments llama.cpp is left out. `--quick` asks two passages in the precisions of the file alone, on the
best instruction set. Models come from the package index (`inflight pull`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison import log_line
from benchmarks.real_models import sentence_vectors
from benchmarks.real_models.engines import LLAMA_BUILDS, QUANTIZED_WAYS, WAYS, inflight, llama
from benchmarks.real_models.passages import long_texts, passages, sentences
from benchmarks.real_models.subject import Examined, Subject
from benchmarks.real_models.tables import Engines, instruction_sets, long_positions, precisions
from benchmarks.results import write_section
from inflight.execution.backends import native
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.text import Tokenizer

GENERATIVE = ("gemma3-270m", "smollm2")
MODELS = (*GENERATIVE, sentence_vectors.MODEL)
_SENTENCES = 240


def main(given: Sequence[str] | None = None) -> None:
    arguments = _options().parse_args(given)
    engines = _engines(arguments)
    if arguments.environments and not engines.llama:
        log_line(f"{arguments.environments} has no llama.cpp; benchmarks/peers/setup.sh FOLDER llama makes it.")
    for name in arguments.models:
        body = _vectors(arguments, engines) if name not in GENERATIVE else _generative(name, arguments, engines)
        print(body, flush=True)
        if arguments.write:
            title = f"What precision costs on real weights: {name}"
            write_section(f"real_models {name}", title, _command(arguments, name), body)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--environments", type=Path, help="the folder that benchmarks/peers/setup.sh was given")
    parser.add_argument("--isas", nargs="+", help="instruction sets, the main one first (default: all of this machine)")
    parser.add_argument("--quick", action="store_true", help="two passages, and the precisions of the file alone")
    parser.add_argument("--write", action="store_true", help="write the sections of docs/results.md")
    return parser


def _engines(arguments: argparse.Namespace) -> Engines:
    isas = arguments.isas or native.available_isas()
    built = {name: llama(arguments.environments, name) for name in LLAMA_BUILDS} if arguments.environments else {}
    return Engines({isa: inflight(isa) for isa in isas}, {name: one for name, one in built.items() if one})


def _command(arguments: argparse.Namespace, name: str) -> str:
    words = ["python -m benchmarks.real_models --models", name]
    words += ["--environments FOLDER"] if arguments.environments else []
    words += ["--isas", *arguments.isas] if arguments.isas else []
    return " ".join([*words, "--quick"] if arguments.quick else words)


def _generative(name: str, arguments: argparse.Namespace, engines: Engines) -> str:
    with tempfile.TemporaryDirectory(prefix="real-models-") as scratch:
        subject = Subject(name, Path(scratch))
        tokenizer = Tokenizer.load(subject.file)
        everything = passages(tokenizer)
        texts = everything[:: 7 if arguments.quick else 1]
        examined = subject.examine("passages", texts, with_folder=not arguments.quick)
        ways = [way for way in WAYS if not (arguments.quick and way.of_folder)]
        parts = [_about(subject, examined, f"{len(texts)} of {len(everything)}", engines)]
        parts.append(precisions(subject, examined, engines, ways))
        if arguments.quick:
            return "\n\n".join(parts)
        moved = subject.examine("spread weights", texts, with_folder=True, spread=True)
        parts += [_OF_SPREAD_WEIGHTS, precisions(subject, moved, Engines(engines.inflight, {}), QUANTIZED_WAYS)]
        parts += [_OF_INSTRUCTION_SETS, instruction_sets(subject, examined, engines)]
        pages = long_texts(tokenizer)
        far = subject.examine("long texts", pages)
        parts += [
            f"Long texts: four pages of the manual, {sum(map(len, pages)):,} tokens.",
            long_positions(subject, far, engines, [len(page) for page in pages]),
        ]
    return "\n\n".join(parts)


_OF_SPREAD_WEIGHTS = (
    "The file's weights lie on grids of 4 to 8 bits, which `int4` finds again in part. So that it meets weights as a "
    "trained model has them, each is moved by up to half a step of its grid, and the reference has the moved ones, too:"
)
_OF_INSTRUCTION_SETS = (
    "Two processors answer alike as far as their arithmetic is: the mean difference of the next token's "
    "log-probability between each instruction set and the first, and how often their likeliest tokens are the same."
)


def _about(subject: Subject, examined: Examined, passages: str, engines: Engines) -> str:
    main_set = next(iter(engines.inflight))
    return (
        f"{CATALOGUE[subject.name].description}. {len(examined.reference.best):,} positions of {passages} passages in "
        f"English, code and seven other languages. The reference is {examined.reference.about}, over the numbers that "
        "the file stands for. KL(reference ‖ engine) in nats, over the reference's 1,024 likeliest tokens and one "
        "bucket for the others; the bf16 folder has the same numbers rounded to bf16. Close is where the reference's "
        "best two tokens are 0.1 to 0.3 nats from each other. "
        f"Instructions: {main_set}, llama.cpp those of its build."
    )


def _vectors(arguments: argparse.Namespace, engines: Engines) -> str:
    texts = sentences(50 if arguments.quick else _SENTENCES)
    isas = list(engines.inflight)
    folder = pull(CATALOGUE[sentence_vectors.MODEL])
    about = (
        f"{CATALOGUE[sentence_vectors.MODEL].description}. {len(texts)} sentences in eight languages, each alone by "
        "transformers in float32, means of the last hidden states. The nearest of the other sentences are by cosine."
    )
    return f"{about}\n\n{sentence_vectors.report(folder, texts, isas[:1] if arguments.quick else isas)}"


if __name__ == "__main__":
    main()
