"""The moving pictures of docs/concepts: runs of this engine's scheduler, uncovered step by step as they went.

Each scene is a small workload, simulated under one setting or two, recorded as `--record` would, and drawn from the
record file alone. What a step computed appears when it ended, at a constant fraction of its own speed: each request in
a step waits for all of it. Moves by CSS, without a script; where people ask for less motion it stands still, whole.

`python -m benchmarks.animations` writes docs/pictures/moving.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from msgspec import structs

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Window
from inflight.report.charts.batch import batch_picture
from inflight.report.charts.frame import BOTTOM, LEFT, RIGHT
from inflight.report.charts.svg import Drawing, number, tag, text
from inflight.report.pictures import kv_by_owner
from inflight.report.reading import read_record
from inflight.report.steps.engine_run import EngineRun
from inflight.report.steps.over_time import waiting
from inflight.simulate.disagg import Link
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

FOLDER = Path(__file__).parent.parent / "docs" / "pictures" / "moving"
WIDTH, SUBTITLE, GAP = 720, 28, 10  # pixels
PLAYED, HELD = 12.0, 2.5  # seconds of a loop: while it moves, and while it stands whole
CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=6, max_model_len=512, vocab_size=1000)
Picture = Callable[[EngineRun, Window], Drawing]


class Machine:
    """Takes 20 ms for a step and 1 ms for every token slot in it."""

    name = "20 ms a step and 1 ms a token"

    def seconds(self, features: Features) -> float:
        return 0.02 + 0.001 * features.tokens

    def extrapolates(self, features: Features) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Panel:
    """One engine's picture in a scene. scheduling, settings: as users give them. disaggregated: whether a second engine
    goes on from the first token; drawn: which of the two is."""

    title: str
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    settings: EngineSettings = field(default_factory=EngineSettings)
    capacity: Capacity = CAPACITY
    pictures: tuple[Picture, ...] = ()
    disaggregated: bool = False
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    title: str
    entries: tuple[Entry, ...]
    panels: tuple[Panel, ...]


# -- what is offered --------------------------------------------------------------------------------------------


def mixed() -> tuple[Entry, ...]:
    """Fourteen requests, short ones and a few with long prompts."""
    rng = random.Random(4)
    return tuple(
        Entry(0.08 * index, rng.choice((12, 20, 30, 45, 160)), rng.choice((4, 8, 14, 22, 40)), max_tokens=64)
        for index in range(14)
    )


def alike() -> tuple[Entry, ...]:
    """Twelve requests whose prompts begin with the same 128 tokens."""
    rng = random.Random(2)
    shared = tuple(range(8))
    return tuple(
        Entry(0.15 * index, 128 + rng.randint(8, 24), rng.randint(6, 14), prefix=shared, block_size=16)
        for index in range(12)
    )


def growing() -> tuple[Entry, ...]:
    """Eight requests whose answers grow beyond what memory holds."""
    rng = random.Random(6)
    return tuple(Entry(0.06 * index, rng.randint(20, 40), rng.randint(40, 90), max_tokens=128) for index in range(8))


def two_lanes() -> tuple[Entry, ...]:
    """A batch job of eight, and people who come in between."""
    rng = random.Random(3)
    job = [Entry(0.0, 60, 40, lane="batch") for _ in range(8)]
    people = [Entry(0.8 + 0.25 * index, rng.randint(20, 40), rng.randint(8, 16)) for index in range(9)]
    return (*job, *(replace(one, lane="interactive") for one in people))


def long_prompts() -> tuple[Entry, ...]:
    """Running streams, and long prompts that arrive beside them."""
    rng = random.Random(8)
    streams = [Entry(0.05 * index, 16, rng.randint(40, 55)) for index in range(3)]
    return (*streams, *(Entry(0.5 + 0.4 * index, 220, rng.randint(8, 14)) for index in range(5)))


def ahead() -> tuple[Entry, ...]:
    """Six streams that may take 0.2 s a token, and prompts that arrive together, twice."""
    streams = [Entry(0.02 * index, 8, 60, targets=Targets(tpot=0.2)) for index in range(6)]
    bursts = [Entry(at, 60, 4, targets=Targets(ttft=0.4)) for at in (1.0, 1.0, 2.2, 2.2)]
    return (*streams, *bursts)


# -- pictures of a run ------------------------------------------------------------------------------------------


def batch(engine: EngineRun, span: Window) -> Drawing:
    queue = waiting(engine)
    counts = [(span.start, 0.0), *zip(queue.times, queue.values, strict=True)]
    drawn = batch_picture("The batch", engine.rows.runs, counts, span, engine.steps.began, width=WIDTH)
    assert drawn is not None, "a run has computed something"
    return drawn


def memory(engine: EngineRun, span: Window) -> Drawing:
    return kv_by_owner(engine, span.seconds, named=5, width=WIDTH)


# -- scenes -----------------------------------------------------------------------------------------------------


def scenes() -> dict[str, Scene]:
    """By file name."""
    ways = {
        "static": SchedulingSettings.of(strategy="static", batch_size=6, max_wait=0.1),
        "dynamic": SchedulingSettings.of(strategy="dynamic", batch_size=6, window=0.1, buckets="3"),
        "continuous": SchedulingSettings.of(strategy="continuous"),
        "chunked": SchedulingSettings.of(strategy="chunked"),
        "adaptive": SchedulingSettings.of(strategy="adaptive", itl_target=0.045),
    }
    whole = EngineSettings(max_num_seqs=6)
    tight = EngineSettings(max_num_seqs=6, max_num_batched_tokens=38)
    roomy = EngineSettings(max_num_seqs=6, max_num_batched_tokens=64)
    budgets = {"static": whole, "dynamic": whole, "continuous": whole, "chunked": tight, "adaptive": roomy}
    found = {
        name: Scene(f"{name} batching", mixed(), (Panel("", way, budgets[name], pictures=(batch,)),))
        for name, way in ways.items()
    }
    small = structs.replace(CAPACITY, num_blocks=28)
    wide, narrow = structs.replace(CAPACITY, max_rows=8), EngineSettings(max_num_seqs=8, max_num_batched_tokens=14)
    plain = SchedulingSettings()
    return found | {
        "static-and-chunked": Scene(
            "The same fourteen requests, batched in two ways",
            mixed(),
            (
                Panel("static: a batch starts and ends as one", ways["static"], whole, pictures=(batch,)),
                Panel("chunked: anyone joins at any step", ways["chunked"], tight, pictures=(batch,)),
            ),
        ),
        "reserved-and-paged": Scene(
            "The same memory, reserved and paged",
            mixed(),
            (
                Panel("reserved for the longest answer", SchedulingSettings(kv_allocation="reserve-max"),
                      tight, pictures=(batch,)),
                Panel("paged: blocks are taken as tokens come", plain, tight, pictures=(batch,)),
            ),
        ),
        "prefix": Scene(
            "Prompts that begin alike",
            alike(),
            (
                Panel("each computes the beginning anew", plain, replace(roomy, enable_prefix_caching=False),
                      pictures=(batch,)),
                Panel("the beginning is computed once", plain, roomy, pictures=(batch,)),
            ),
        ),
        "preemption": Scene(
            "Answers that outgrow memory",
            growing(),
            (Panel("", plain, roomy, capacity=small, pictures=(batch, memory)),),
        ),
        "lanes": Scene(
            "A batch job that yields to people",
            two_lanes(),
            (Panel("", plain, roomy, pictures=(batch, memory)),),
        ),
        "slack": Scene(
            "Streams with time in hand, and prompts that come in bursts",
            ahead(),
            tuple(
                Panel(title, SchedulingSettings.of(strategy=strategy), narrow, wide, pictures=(batch,))
                for title, strategy in (
                    ("chunked: every stream has its token in each step", "chunked"),
                    ("slack: streams ahead of their deadlines give prompts their place", "slack"),
                )
            ),
        ),
        "disaggregated": Scene(
            "Long prompts beside running streams",
            long_prompts(),
            (
                Panel("one engine does both, whole prompts", ways["continuous"], whole, pictures=(batch,)),
                Panel("one engine of two: prompts", ways["continuous"], whole, pictures=(batch,), disaggregated=True),
                Panel("the other: tokens", ways["continuous"], whole, pictures=(batch,), disaggregated=True, drawn=1),
            ),
        ),
    }  # fmt: skip


def run(scene: Scene, panel: Panel, folder: Path) -> EngineRun:
    """From its record file."""
    pool = Pool(panel.capacity, panel.settings, panel.scheduling, lambda number: Machine())
    decode = replace(pool) if panel.disaggregated else None
    link = Link(bytes_per_token=1e5, gbps=100.0) if panel.disaggregated else None
    simulate(Workload(scene.entries, scene.title), SimulationSetup(pool, decode, link), folder / "run.jsonl")
    found = sorted(folder.iterdir())
    engine = read_record(found[panel.drawn]).runs[0].engine
    assert engine is not None, "a simulation records its steps"
    for path in found:
        path.unlink()
    return engine


# -- motion -----------------------------------------------------------------------------------------------------


def animated(title: str, shown: Sequence[tuple[str, Drawing, EngineRun]], span: Window) -> str:
    """An SVG file. shown: subtitle, picture over the span, and the run whose steps uncover it."""
    body, rules, height = "", [], 0.0
    for place, (subtitle, drawing, engine) in enumerate(shown):
        if subtitle:
            body += text(2, height + 14, subtitle, "subtitle")
            height += SUBTITLE
        curtain, moved = _curtain(f"c{place}", drawing, engine, span)
        body += tag("g", drawing.body + curtain, transform=f"translate(0 {height:g})")
        rules.append(moved)
        height += drawing.height + GAP
    described = " ".join(f"{subtitle or drawing.title}: {drawing.description}" for subtitle, drawing, _ in shown)
    whole = Drawing(title, described, WIDTH, height, body).standalone()
    return whole.replace("</style>", escape("".join(rules), quote=False) + "</style>", 1)


def _curtain(name: str, drawing: Drawing, engine: EngineRun, span: Window) -> tuple[str, str]:
    """Cover the time that is still to come, and the rules by which it moves from step to step."""
    legend = [int(y) for y in re.findall(r'y="(\d+)"[^>]*class="key"', drawing.body)]
    top = max(legend, default=0) + 8
    width, height = WIDTH - RIGHT - LEFT, drawing.height - BOTTOM - top
    inside = tag("rect", width=width, height=height, style="fill:var(--page);fill-opacity:.9") + tag(
        "path", d=f"M0 0V{number(height)}", style="stroke:var(--ink);stroke-width:1.5"
    )
    moving = tag("g", inside, class_=name)
    window = tag("svg", moving, x=LEFT, y=top, width=width, height=height, class_="future")
    share = PLAYED / (PLAYED + HELD)
    frames = ["0%{transform:translateX(0)}"]
    last = 0.0
    for ended in engine.steps.ended:
        place = (ended - span.start) / span.seconds
        if width * (place - last) < 1 and place < 0.999:  # less than a pixel
            continue
        frames.append(f"{100 * share * place:.2f}%{{transform:translateX({number(width * place)}px)}}")
        last = place
    frames.append(f"{100 * share:.2f}%,100%{{transform:translateX({width + 2}px)}}")
    moves = f".{name}{{animation:{name} {PLAYED + HELD:g}s step-end infinite}}@keyframes {name}{{{''.join(frames)}}}"
    return window, moves + "@media (prefers-reduced-motion:reduce){.future{display:none}}"


def draw(name: str, scene: Scene, longest: float = 0.0) -> str:
    """longest: seconds of the time axis at least, so that scenes of one workload can be laid side by side."""
    with tempfile.TemporaryDirectory() as folder:
        engines = [run(scene, panel, Path(folder)) for panel in scene.panels]
    end = max(longest, *(engine.steps.end for engine in engines))
    span = Window(0.0, 1.02 * end)
    shown = [
        (panel.title if not index else "", picture(engine, span), engine)
        for panel, engine in zip(scene.panels, engines, strict=True)
        for index, picture in enumerate(panel.pictures)
    ]
    seconds = " and ".join(f"{engine.steps.end:.2f} s" for engine in engines[:2])
    print(f"{name}: all answered after {seconds}")
    return animated(scene.title, shown, span)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, scene in scenes().items():
        (FOLDER / f"{name}.svg").write_text(draw(name, scene), encoding="utf-8")


if __name__ == "__main__":
    main()
