"""Schemas of real projects and their instances: a file of JSON lines, each with `schema` and `tests`,
as MaskBench has them (`data`, `valid`).

A schema is compiled as one of a request, in the limited process too. An instance counts as let through where masks let
its text be written, properties in the schema's order, and the check at its end lets it end.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import table
from benchmarks.structured_output.property_order import PropertyOrder
from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.json_schema.lowering import lower

_KEYWORD = re.compile(r"\b(?:has|because of|at \S*/) ?'?(\$?[a-zA-Z]+)")


@dataclass
class Found:
    schemas: int = 0
    checked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    taken: dict[bool, list[bool]] = field(default_factory=lambda: {True: [], False: []})  # by what is right
    masked: list[bool] = field(default_factory=list)  # of invalid ones: whether the masks alone stopped them
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)


def report(path: Path, compiled: CompiledGrammars, size: int, has_masks: bool) -> str:
    """Return the tables of a file of schemas. size: of the vocabulary."""
    compiled.check(Grammar("choice", '["a"]'))  # the view is made
    found = Found()
    for line in path.read_text(encoding="utf-8").splitlines():
        _look_at(json.loads(line), compiled, size if has_masks else 0, found)
    return "\n\n".join(_tables(found, size))


def _look_at(one: dict[str, Any], compiled: CompiledGrammars, size: int, found: Found) -> None:
    grammar = Grammar("json_schema", json.dumps(one["schema"]))
    found.schemas += 1
    before = compiled.stats().compile_seconds
    try:
        compiled.check(grammar)
    except RequestRefused as refusal:
        said = _KEYWORD.search(str(refusal))
        found.refused[said[1] if said else str(refusal)[:60]] += 1
        found.otherwise.append(f"refused: {one.get('name')}: {refusal}")
        return
    finally:
        found.compile_seconds.append(compiled.stats().compile_seconds - before)
    checks = compiled.outcome(grammar).checks
    found.checked += checks is not None
    order = PropertyOrder(lower(one["schema"]).text)
    for test in one.get("tests", ()):
        text = json.dumps(order.ordered(test["data"]), ensure_ascii=False)
        is_masked = not _is_written(compiled, grammar, text)
        is_taken = not is_masked and (checks is None or checks.fault("", text.encode()) is None)
        found.taken[test["valid"]].append(is_taken)
        if not test["valid"]:
            found.masked.append(is_masked)
        if is_taken != test["valid"]:
            found.otherwise.append(f"{'not ' * (not is_taken)}taken: {one.get('name')}: {text[:80]}")
        if size and test["valid"]:
            found.mask_seconds += _mask_seconds(compiled, grammar, text, size)
            size = 0  # one instance of each


def _is_written(compiled: CompiledGrammars, grammar: Grammar, text: str) -> bool:
    matcher, token_ids = compiled.outcome(grammar).matcher.deep_copy(), compiled.tokens(text)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def _mask_seconds(compiled: CompiledGrammars, grammar: Grammar, text: str, size: int) -> Iterator[float]:
    matcher, bits = compiled.outcome(grammar).matcher.deep_copy(), np.zeros(-(-size // 32), np.uint32)
    for token_id in compiled.tokens(text):
        began = time.perf_counter()
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        yield time.perf_counter() - began
        if not matcher.consume_token(token_id):
            return


def _tables(found: Found, size: int) -> Iterator[str]:
    accepted = found.schemas - found.refused.total()
    valid, invalid = found.taken[True], [not one for one in found.taken[False]]
    yield table(
        ["of", "count", "share"],
        [
            ["schemas that are accepted", f"{accepted} of {found.schemas}", _share(accepted, found.schemas)],
            ["… with a check of the whole answer", found.checked, _share(found.checked, found.schemas)],
            ["valid instances that are let through", f"{sum(valid)} of {len(valid)}", _share(sum(valid), len(valid))],
            ["invalid ones that are refused", f"{sum(invalid)} of {len(invalid)}", _share(sum(invalid), len(invalid))],
            ["… by masks alone", sum(found.masked), _share(sum(found.masked), len(invalid))],
        ],
    )
    rows = [["compiling, seconds of the processor", *_percentiles(found.compile_seconds, 1, 4)]]
    if found.mask_seconds:
        rows.append([f"a mask over {size:,} tokens, milliseconds", *_percentiles(found.mask_seconds, 1e3, 3)])
    yield table(["", "p50", "p99", "max"], rows)
    if found.refused:
        yield "Refused by: " + ", ".join(f"{name} ({count})" for name, count in found.refused.most_common()) + "."
    if found.otherwise:
        yield "\n".join(f"- {one}" for one in found.otherwise[:40])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _percentiles(values: Sequence[float], factor: float, digits: int) -> list[str]:
    ordered = sorted(values)
    found = statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], ordered[-1]
    return [f"{factor * one:.{digits}f}" for one in found]
