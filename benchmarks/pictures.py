"""The pictures of docs/strategies.md and docs/speculation.md, drawn from recorded runs: what a strategy does with rows
and KV blocks over time, and when speculation drafts.

Runs the same small workload under each strategy on the null executor and a virtual clock, records it as `--record`
would, and draws from the record file alone, as `inflight report` does. Speculation runs in the simulator, where it is
known how often drafts are right.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.chart_pictures import photograph
from benchmarks.drive import drive
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Strategy
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.strategies.slack import Slack
from inflight.core.strategies.static import Static
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder
from inflight.report.charts.frame import WIDE
from inflight.report.charts.svg import Drawing, tag, text
from inflight.report.pictures import batch_over_time, draft_pictures, kv_by_owner, queue_over_time
from inflight.report.reading import read_record
from inflight.report.steps.engine_run import EngineRun
from inflight.simulate.drafting import SimulatedDrafts, parse_acceptance
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.testing.null import NullExecutor
from inflight.workload.workload import Entry, Workload

SUBTITLE = 26  # pixels
FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
CAPACITY = Capacity(num_blocks=64, block_size=16, max_rows=6, max_model_len=512, vocab_size=1000)


def _above(title: str, first: Drawing, second: Drawing) -> Drawing:
    """Two pictures as one, the first over the second, which keeps its title."""
    top = first.height + SUBTITLE
    lower = text(2, top - 12, second.title, "subtitle") + tag("g", second.body, transform=f"translate(0 {top:g})")
    width, height = max(first.width, second.width), top + second.height
    described = f"{first.title}: {first.description} {second.title}: {second.description}"
    return Drawing(title, described, width, height, first.body + lower, first.wide or second.wide)


def step_seconds(plan: BatchPlan) -> float:
    """A machine that takes 20 ms for a step and 1 ms for every token slot in it."""
    return 0.02 + 0.001 * features(plan).tokens


def workload() -> list[Request]:
    rng = random.Random(4)
    requests = []
    for index in range(14):
        prompt = rng.choice((12, 20, 30, 45, 160))
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(rng.randrange(1000) for _ in range(prompt)),
                params=SamplingParams(temperature=0, max_tokens=64),
                arrival=0.08 * index,
                slo=SLO(ttft=1.0, itl=0.2),  # slack alone reads them
                forced_output_tokens=rng.choice((4, 8, 14, 22, 40)),
            )
        )
    return requests


def strategies(latency: LatencyModel) -> list[Strategy]:
    return [
        Static(batch_size=6, max_wait=0.1),
        Dynamic(batch_size=6, window=0.1, buckets=3),
        Continuous(token_budget=512),
        Chunked(token_budget=38),
        Adaptive(token_budget=128, itl_target=0.045, latency=latency),
        Slack(token_budget=38, itl_target=None, latency=latency),
    ]


def record(strategy: Strategy, latency: LatencyModel, path: Path) -> None:
    scheduler = Scheduler(SchedulerConfig(CAPACITY, strategy, Fcfs(), latency=latency))
    clock = VirtualClock()
    recorder = Recorder(path.open("wb"), {"strategy": strategy.name}, CAPACITY)
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY, step_seconds), clock, observers=[recorder])
    drive(loop, workload())
    loop.close()


def engine_of(path: Path) -> EngineRun:
    engine = read_record(path).runs[0].engine
    assert engine is not None
    return engine


def draw(engine: EngineRun, name: str, seconds: float) -> None:
    """seconds: of the time axis, the same for all."""
    title = f"{name}: all answered after {engine.steps.end:.2f} s"
    rows = batch_over_time(engine, seconds)[0]
    blocks = kv_by_owner(engine, seconds, named=14, width=WIDE)
    (FOLDER / f"{name}.svg").write_text(_above(title, rows, blocks).standalone(), encoding="utf-8")


class MemoryBound:
    """A machine that reads weights for 10 ms, whatever a step computes, and computes 0.3 ms for every token."""

    name = "10 ms a step and 0.3 ms a token"

    def seconds(self, features: Features) -> float:
        return 0.01 + 0.0003 * features.tokens

    def extrapolates(self, features: Features) -> str | None:
        return None


def speculating(path: Path) -> None:
    """Two people's answers, and for a while forty more beside them."""
    rng = random.Random(7)
    lasting = [Entry(0.0, 60, 900), Entry(0.0, 60, 900)]
    crowd = [Entry(1.5 + 0.02 * index, 40, rng.randint(40, 120)) for index in range(40)]
    capacity = Capacity(num_blocks=2000, block_size=16, max_rows=48, max_model_len=1024, vocab_size=1000)
    settings = EngineSettings(max_num_seqs=48, max_num_batched_tokens=256)
    scheduling = SchedulingSettings(speculation="suffix", speculation_max_tokens=8)
    drafts = SimulatedDrafts(parse_acceptance("0.85,0.8,0.8,0.75"))
    pool = Pool(capacity, settings, scheduling, lambda number: MemoryBound(), drafts=drafts)
    simulate(Workload((*lasting, *crowd), "two, and a crowd"), SimulationSetup(pool), path)


def draw_speculation() -> None:
    path = FOLDER / "speculation.jsonl"
    speculating(path)
    engine = engine_of(path)
    path.unlink()
    by_place, lengths, over_time = draft_pictures(engine)
    title = "Drafts while two answers run alone, and while forty more run beside them"
    photograph(FOLDER / "speculation.png", title, [queue_over_time(engine), by_place, over_time, lengths], columns=2)
    print(f"speculation: {engine.drafts.counts.tokens:,} drafts, all answered after {engine.steps.end:.2f} s")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs: dict[str, EngineRun] = {}
    for index in range(len(strategies(LatencyModel()))):
        latency = LatencyModel()  # each strategy's engine learns for itself
        strategy = strategies(latency)[index]
        path = FOLDER / f"{strategy.name}.jsonl"
        record(strategy, latency, path)
        runs[strategy.name] = engine_of(path)
        path.unlink()
    longest = max(engine.steps.end for engine in runs.values())
    for name, engine in runs.items():
        draw(engine, name, 1.02 * longest)
        print(f"{name}: all answered after {engine.steps.end:.2f} s")
    draw_speculation()


if __name__ == "__main__":
    main()
