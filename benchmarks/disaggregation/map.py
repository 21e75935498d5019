"""The map: where disaggregated prefill and decode pays, over lengths, targets and links, against the better of engines
that do both; and the table of it in docs/scaling.md.

Trials are short (120 to 200 requests are read), so that a tenth more or less shows nothing.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec

from benchmarks.comparison import log_line
from benchmarks.disaggregation.found import Search, Shape
from benchmarks.disaggregation.shapes import ANSWERS, LINKS, PROMPTS, SLOS, TAIL
from benchmarks.results import table

SCALING = Path(__file__).parents[2] / "docs" / "scaling.md"
REQUESTS = (120, 200, 450)
MARK = "map of disaggregation"
NOISE = 0.1
USUAL = "usual"


class Cell(msgspec.Struct, frozen=True, rename={"slos": "promises", "disaggregated": "apart"}):
    """together: requests/s and engine of the better of both, and which it is; disaggregated: by link."""

    prompts: int
    answers: int
    slos: str
    together: float
    layout: str
    split: tuple[int, int]
    disaggregated: dict[str, float]

    def ratio(self, link: str) -> float | None:
        """None: neither meets the targets."""
        if not self.disaggregated[link] and not self.together:
            return None
        return self.disaggregated[link] / self.together if self.together else float("inf")


def cell(prompts: int, answers: int, slos: str) -> Cell:
    log_line(f"prompts of {prompts:,}, answers of {answers:,}, {slos}: {SLOS[slos]}")
    lengths = f"lognormal:{prompts}:{TAIL * prompts}", f"lognormal:{answers}:{TAIL * answers}"
    search = Search(Shape(*lengths, SLOS[slos], REQUESTS))
    both = search.better_together()
    fastest, *others = sorted(LINKS, key=lambda name: -LINKS[name])
    best = search.disaggregated(LINKS[fastest])
    pools = best.layout.pools
    assert pools is not None
    rates = {fastest: best.rate}
    for link in others:
        rates[link] = search.again(best, LINKS[link]).rate if best.rate else 0.0
    split = pools.prefill, pools.decode
    return Cell(prompts, answers, slos, both.rate, both.layout.name, split, rates)


def cells(kept: Path, search: bool) -> list[Cell]:
    """Return the cells of the file, and with `search` those that it lacks, the usual target and short answers first."""
    found = [msgspec.json.decode(line, type=Cell) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    known = {(one.prompts, one.answers, one.slos) for one in found}
    asked = sorted(itertools.product(ANSWERS, SLOS, PROMPTS), key=lambda one: (one[0] == max(ANSWERS), one[1] != USUAL))
    for answers, slos, prompts in asked:
        if search and (prompts, answers, slos) not in known:
            found.append(cell(prompts, answers, slos))
            with kept.open("ab") as file:
                file.write(msgspec.json.encode(found[-1]) + b"\n")
    places = {name: at for at, name in enumerate(SLOS)}
    return sorted(found, key=lambda one: (places[one.slos], one.prompts, one.answers))


def report(found: list[Cell]) -> str:
    head = ("targets", "prompts", "answers", "together", "split", *(f"disaggregated, {link}" for link in LINKS))
    rows = [
        (
            one.slos,
            f"{one.prompts:,}",
            f"{one.answers:,}",
            f"{one.together:.2f} ({one.layout})",
            f"{one.split[0]} to {one.split[1]}",
            *(_ratio_text(one.ratio(link)) for link in LINKS),
        )
        for one in found
    ]
    every = len(SLOS) * len(PROMPTS) * len(ANSWERS)
    part = "" if len(found) == every else f" {len(found)} of {every} cells were run."
    slos = "; ".join(f"{name}: `{slo}`" for name, slo in SLOS.items())
    return (
        "Of each cell the requests per second and engine (four H100s) that the better of whole prompts and chunks "
        "keeps, and how many times as many are kept per GPU disaggregated, asked after the prompt (as behind "
        "vllm-router), by "
        f"the link of an engine. Above 1 it pays; a tenth is noise. {slos}.{part}\n\n{table(head, rows)}"
    )


def short(found: list[Cell]) -> str:
    """For docs/scaling.md: the ratio by targets and lengths, for the slowest and the fastest link."""
    parts = []
    for slos, slo in SLOS.items():
        mine = [one for one in found if one.slos == slos]
        rows = []
        for prompts in PROMPTS:
            row = [f"prompts of {prompts:,}"]
            for answers in ANSWERS:
                one = next((each for each in mine if (each.prompts, each.answers) == (prompts, answers)), None)
                row.append("" if one is None else " / ".join(_ratio_text(one.ratio(link)) for link in LINKS))
            rows.append(row)
        head = (f"{slos}: `{slo}`", *(f"answers of {answers:,}" for answers in ANSWERS))
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def write_map(found: list[Cell]) -> None:
    """Between its marks in docs/scaling.md."""
    pattern = re.compile(f"(<!-- begin {MARK} -->\n).*?(<!-- end {MARK} -->)", re.DOTALL)
    text = SCALING.read_text(encoding="utf-8")
    SCALING.write_text(pattern.sub(lambda match: f"{match[1]}\n{short(found)}\n\n{match[2]}", text), encoding="utf-8")


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    if ratio == float("inf"):
        return "only disaggregated"
    return f"**{ratio:.2f}**" if ratio > 1 + NOISE else f"{ratio:.2f}"
