"""The check: three shapes of traffic for which others have said whether prefill and decode apart pay, and how much."""

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
    promises: str
    needs: dict[str, LayoutNeed]  # by layout
    apart: LayoutNeed  # as published
    ours: LayoutNeed  # as behind vllm-router

    def ratio(self, baseline: str, apart: LayoutNeed | None = None) -> float:
        return (apart or self.apart).rate / max(1e-9, self.needs[baseline].rate)


def check(about: Published) -> Checked:
    promises = about.promises or _multiples(about)
    log_line(f"{about.name}: {promises}")
    search = Search(Shape(about.prompts, about.answers, promises))
    needs = {need.layout.name: need for need in search.together(about.engines)}
    apart = search.apart(FASTEST, AS_PUBLISHED, about.engines)
    return Checked(about, promises, needs, apart, search.again(apart, FASTEST))


def _multiples(about: Published) -> str:
    assert about.slowdowns is not None
    first, between = alone(about.prompts, about.answers)
    return f"ttft={about.slowdowns[0] * first * 1e3:.0f}(p90),tpot={about.slowdowns[1] * between * 1e3:.1f}(p90)"


def report() -> str:
    found = [check(one) for one in PUBLISHED]
    rows = [_row(one) for one in found]
    head = (
        "traffic",
        "promised",
        "whole prompts",
        "chunked",
        "apart",
        "apart / their baseline",
        "published",
        "same sign",
        "apart / chunked",
        "behind vllm-router / chunked",
    )
    sources = "\n".join(f"- {one.about.name}: {one.about.source}; against {one.about.baseline}" for one in found)
    return (
        "Requests per second and engine of four H100s at which the promises are kept (a simulation by data sheets). "
        "*Apart* is as published: blocks travel while prompts are computed, and the client has the prefill engine's "
        f"first token.\n\n{table(head, rows)}\n\n{sources}"
    )


def _row(one: Checked) -> list[str]:
    low, high = one.about.ratio
    ratio, pools = one.ratio(one.about.baseline), one.apart.layout.pools
    assert pools is not None
    return [
        one.about.name,
        one.promises,
        f"{one.needs['whole prompts'].rate:.2f}",
        f"{one.needs['chunked'].rate:.2f}",
        f"{one.apart.rate:.2f} ({pools.prefill} to {pools.decode})",
        f"{ratio:.2f} ({one.about.baseline})",
        f"{low:g} to {high:g}",
        "yes" if (ratio > 1) == one.about.pays else "**no**",
        f"{one.ratio('chunked'):.2f}",
        f"{one.ratio('chunked', one.ours):.2f}",
    ]
