"""The check: three shapes of traffic for which others have said whether disaggregated prefill and decode pays, and how
much."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.comparison import log_line
from benchmarks.disaggregation.found import Search, Shape, alone
from benchmarks.disaggregation.shapes import LINKS, PUBLISHED, Published
from benchmarks.results import table
from inflight.planning.layouts import LayoutNeed
from inflight.simulate.disagg import DisaggMode

FASTEST = max(LINKS.values())
AS_PUBLISHED = DisaggMode(
    "first", "prefill"
)  # blocks travel while prompts are computed; the first token is the prompt's


@dataclass(frozen=True, slots=True)
class Checked:
    about: Published
    slos: str
    needs: dict[str, LayoutNeed]  # by layout
    disaggregated: LayoutNeed  # as published
    ours: LayoutNeed  # as behind vllm-router

    def ratio(self, baseline: str, disaggregated: LayoutNeed | None = None) -> float:
        return (disaggregated or self.disaggregated).rate / max(1e-9, self.needs[baseline].rate)


def check(about: Published) -> Checked:
    slos = about.slos or _multiples(about)
    log_line(f"{about.name}: {slos}")
    search = Search(Shape(about.prompts, about.answers, slos))
    needs = {need.layout.name: need for need in search.together(about.engines)}
    disaggregated = search.disaggregated(FASTEST, AS_PUBLISHED, about.engines)
    return Checked(about, slos, needs, disaggregated, search.again(disaggregated, FASTEST))


def _multiples(about: Published) -> str:
    assert about.slowdowns is not None
    first, between = alone(about.prompts, about.answers)
    return f"ttft={about.slowdowns[0] * first * 1e3:.0f}(p90),tpot={about.slowdowns[1] * between * 1e3:.1f}(p90)"


def report() -> str:
    found = [check(one) for one in PUBLISHED]
    rows = [_row(one) for one in found]
    head = (
        "traffic",
        "targets",
        "whole prompts",
        "chunked",
        "disaggregated",
        "disaggregated / their baseline",
        "published",
        "same sign",
        "disaggregated / chunked",
        "behind vllm-router / chunked",
    )
    sources = "\n".join(f"- {one.about.name}: {one.about.source}; against {one.about.baseline}" for one in found)
    return (
        "Requests per second and engine of four H100s at which the targets are met (a simulation by data sheets). "
        "*Disaggregated* is as published: blocks travel while prompts are computed, and the client has the prefill "
        "engine's "
        f"first token.\n\n{table(head, rows)}\n\n{sources}"
    )


def _row(one: Checked) -> list[str]:
    low, high = one.about.ratio
    ratio, pools = one.ratio(one.about.baseline), one.disaggregated.layout.pools
    assert pools is not None
    return [
        one.about.name,
        one.slos,
        f"{one.needs['whole prompts'].rate:.2f}",
        f"{one.needs['chunked'].rate:.2f}",
        f"{one.disaggregated.rate:.2f} ({pools.prefill} to {pools.decode})",
        f"{ratio:.2f} ({one.about.baseline})",
        f"{low:g} to {high:g}",
        "yes" if (ratio > 1) == one.about.pays else "**no**",
        f"{one.ratio('chunked'):.2f}",
        f"{one.ratio('chunked', one.ours):.2f}",
    ]
