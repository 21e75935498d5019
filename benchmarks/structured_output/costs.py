"""Measure what the parts take by themselves, in one thread: the view of a vocabulary, compiling by the schema's size,
masks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.comparison import spread
from benchmarks.results import table
from benchmarks.structured_output.schemas import endless, never_seen
from benchmarks.structured_output.vocabulary import made_up_tokenizer
from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.vocabulary import Vocabulary

VOCABULARIES = (32_000, 151_936)
PROPERTIES = (1, 5, 20, 100, 400)
TOKENS = 600  # of one output
MASKED = {
    "a list of nested records": endless(),
    "any JSON object": Grammar("json_object"),
    "a regular expression": Grammar("regex", r"([A-Z][a-z]{2,12} [0-9]{1,4}(\.[0-9]{2})?, ){1,2000}end"),
    "a text of any kind": Grammar("regex", r"(.|\n)*"),
}


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary(made_up_tokenizer(size), size, size, (size - 1,))


def report(repeats: int) -> str:
    return "\n\n".join([_views(repeats), _compiling(repeats), _masks()])


def _views(repeats: int) -> str:
    rows: list[list[object]] = []
    for size in VOCABULARIES:
        made = vocabulary(size)
        rows.append([f"{size:,}", spread((_seconds(made) for _ in range(repeats)), 2)])
    about = "The library's view of a vocabulary, made once; meanwhile no other thread computes Python."
    return f"{about}\n\n{table(['tokens', 'seconds'], rows)}"


def _seconds(made: Vocabulary) -> float:
    began = time.perf_counter()
    made.for_llguidance()
    return time.perf_counter() - began


def _compiling(repeats: int) -> str:
    """Each schema is another one, so that none is there already."""
    compiled = _compiled()
    rows: list[list[object]] = []
    for number, properties in enumerate(PROPERTIES):
        grammars = [never_seen(1000 * number + one, properties) for one in range(repeats)]
        times = []
        for one in grammars:
            before = compiled.stats().compile_seconds
            compiled.check(one)
            times.append(1e3 * (compiled.stats().compile_seconds - before))
        rows.append([properties, f"{len(grammars[0].source):,}", spread(times, 1)])
    compiled.close()
    about = f"Compiling a schema that was never there before over {VOCABULARIES[-1]:,} tokens, with its first mask."
    return f"{about}\n\n{table(['properties', 'characters', 'milliseconds'], rows)}"


def _masks() -> str:
    """A first output finds states of the grammar for the first time; later ones find most of them again."""
    compiled = _compiled()
    rows = []
    for name, grammar in MASKED.items():
        compiled.check(grammar)
        rows.append([name, *(_cell(_output(compiled, grammar, seed)) for seed in (1, 2, 3))])
    compiled.close()
    about = (
        f"A mask over {VOCABULARIES[-1]:,} tokens, in microseconds: mean (99th percentile) of {TOKENS} tokens, drawn "
        "at random among those allowed. Each output is drawn anew, by the same grammar: its first, second and third."
    )
    return f"{about}\n\n{table(['grammar', 'first output', 'second', 'third'], rows)}"


def _output(compiled: CompiledGrammars, grammar: Grammar, seed: int) -> list[float]:
    matcher, chance, times = compiled.outcome(grammar).matcher.deep_copy(), np.random.default_rng(seed), list[float]()
    bits = np.zeros(-(-VOCABULARIES[-1] // 32), np.uint32)
    while len(times) < TOKENS:
        began = time.perf_counter()
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        times.append(1e6 * (time.perf_counter() - began))
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        allowed = allowed[allowed != VOCABULARIES[-1] - 1]
        if not len(allowed):
            matcher = compiled.outcome(grammar).matcher.deep_copy()
            continue
        matcher.consume_token(int(chance.choice(allowed)))
    return times


def _cell(times: Sequence[float]) -> str:
    return f"{statistics.fmean(times):,.0f} ({sorted(times)[int(0.99 * len(times))]:,.0f})"


def _compiled() -> CompiledGrammars:
    made = vocabulary(VOCABULARIES[-1])
    compiled = CompiledGrammars(lambda: made)
    compiled.check(Grammar("choice", '["a"]'))  # the view is made
    return compiled
