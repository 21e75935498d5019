"""Two tenants under the policy fair: one floods with calls of 128 samples, the other asks for little. Is it refused?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.attack.field import Field
from benchmarks.attack.honest import Plan
from benchmarks.attack.sightings import Seen
from benchmarks.attack.target import HONEST_KEYS
from benchmarks.attack.trials import answers_of, ms
from benchmarks.attack.waits import Outcome, waits
from benchmarks.results import table

STREAMS = 20  # of the other tenant at once: far below half of the 1,024 places
FLOOD = "flood"


def tenants(folder: Path, seconds: float, seed: int) -> str:
    with Field(folder, with_keys=True, plan=Plan(streams=STREAMS, keys=(HONEST_KEYS[0],))) as field:
        before = field.quiet(seconds / 3)
        raid = field.raid([FLOOD], seconds, seed, tenants=1)
        outcome = field.outcome([raid], [before])
        flooded = field.sightings.within((raid.window[0], raid.ended))
    return report(outcome, flooded, seconds)


def report(outcome: Outcome, flooded: Seen, seconds: float) -> str:
    refused = sum(count for why, count in flooded.wrong.items() if why.startswith("429"))
    others = sum(flooded.wrong.values()) - refused
    rows: list[Sequence[object]] = [
        ["calls of the other tenant that were refused", refused, 0],
        ["its streams that broke off or differ", others, 0],
        ["its streams complete with the text of before", f"{flooded.same:,}", "all"],
        ["the server", outcome.died or "lived", "lives"],
    ]
    times = [
        [name, f"{one.count:,}", ms(one)]
        for name, one in (("alone", waits(outcome.quiet.ttfts)), ("beside the flood", waits(flooded.ttfts)))
    ]
    intro = (
        f"--policy fair, one tenant floods for {seconds:g} s with 64 calls at once of n 128, the other has {STREAMS} "
        f"streams in flight. The flood got: {answers_of(outcome)}."
    )
    head = ["the other's TTFT", "streams", "p50, p99, longest, ms"]
    return "\n\n".join([intro, table(["", "measured", "asked"], rows), table(head, times)])
