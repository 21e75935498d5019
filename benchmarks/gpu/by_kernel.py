"""Where the time of a step goes: its kernels by name, those that take longest first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.ran import Ran, of_decodes, of_prompt
from benchmarks.gpu.steps import Stepper
from benchmarks.results import table

_SHOWN = 12
_NAME = 60  # characters of a kernel's name: a template's arguments fill lines


def by_kernel(model: DrawnModel, rows: Sequence[int], context: int, steps: int, prompt: int) -> str:
    if not torch.cuda.is_available():
        return "There are no kernels to see: there is no GPU."
    stepper, sections = Stepper(model), []
    for count in rows:
        sections.append(_section(f"{count} rows decode", *of_decodes(stepper, count, context, steps)))
    sections.append(_section(f"a prompt of {prompt:,}", *of_prompt(stepper, prompt, 3)))
    return "\n\n".join(sections)


def _section(what: str, ran: Iterable[Ran], passes: int) -> str:
    spent: dict[str, list[float]] = defaultdict(list)
    for one in ran:
        spent[_short(one.name)].append(one.end - one.start)
    longest = sorted(spent.items(), key=lambda one: -sum(one[1]))
    cells = [[name, f"{len(each) / passes:,.1f}", f"{sum(each) / passes:,.1f}"] for name, each in longest[:_SHOWN]]
    rest = sum(sum(each) for _, each in longest[_SHOWN:]) / passes
    cells.append(["all others", f"{sum(len(each) for _, each in longest[_SHOWN:]) / passes:,.1f}", f"{rest:,.1f}"])
    return table([what, "times a step", "µs a step"], cells)


def _short(name: str) -> str:
    """Without a template's arguments, and what stands around the name of one of ours."""
    return re.sub(r"<.*", "", name.removeprefix("void "))[:_NAME]
