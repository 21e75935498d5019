"""How `inflight compare` puts engines and a workload together: runs that take turns, each on an engine of its own.

Knows the order of the runs and what is kept of each. A run's engine is made anew, with empty caches, and gone before
the next one starts; all runs of a load are offered the very same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inflight.bench.run import Warmup, measured_part
from inflight.build import Engine, build_engine
from inflight.cli.variants import Variant
from inflight.core.request import Request
from inflight.metrics.observation import Observation
from inflight.metrics.summary import summarize
from inflight.report.reading import read_record
from inflight.report.run import Option, Run, Setting
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver
from inflight.workload.requests import core_request
from inflight.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Load:
    """One workload that every setting gets. words: as "at once" or "4 requests/s"."""

    words: str
    workload: Workload


@dataclass(slots=True)
class Comparison:
    """folder: where records go. ended(run number, runs in all, requests ended, requests in all): told of each request.
    stop: whether to end after what is under way."""

    variants: Sequence[Variant]
    folder: Path
    warmup: Warmup
    prompt_seed: int
    ended: Callable[[str, int, int], None]
    stop: Callable[[], bool]

    def run(self, loads: Sequence[Load], repeats: int) -> list[Setting]:
        """Repeats of one load first, its settings in turn, beginning with another one each time. Whoever is stopped
        keeps the whole rounds, so that every setting has the same ones."""
        runs: dict[str, list[Run]] = {one.name: [] for one in self.variants}
        options: dict[str, dict[str, Option]] = {}
        for load in loads:
            for repeat in range(repeats):
                taken = self._round(load, repeat, options)
                if taken is None:
                    break
                for name, run in taken.items():
                    runs[name].append(run)
        return [Setting(one.name, runs[one.name], options.get(one.name, {})) for one in self.variants]

    def _round(self, load: Load, repeat: int, options: dict[str, dict[str, Option]]) -> dict[str, Run] | None:
        turn = repeat % len(self.variants)
        taken: dict[str, Run] = {}
        for variant in (*self.variants[turn:], *self.variants[:turn]):
            run, taken_options = self._one(variant, load, self.folder / f"{len(list(self.folder.iterdir()))}.jsonl")
            if self.stop():
                return None
            options.setdefault(variant.name, taken_options)
            taken[variant.name] = run
        return taken

    def _one(self, variant: Variant, load: Load, record: Path) -> tuple[Run, dict[str, Option]]:
        engine = build_engine(variant.engine, variant.scheduling, record)
        try:
            observations = self._drive(engine, variant, load)
        finally:
            engine.loop.close()
        recorded = read_record(record).runs[0].engine
        window, why = measured_part(observations, self.warmup)
        run = Run(observations, summarize(observations, window), window, load.words, recorded, load.workload.notes)
        return run, {name: Option(entry.value, entry.reason) for name, entry in engine.settings.items()}

    def _drive(self, engine: Engine, variant: Variant, load: Load) -> list[Observation]:
        workload = load.workload
        contents = Contents(workload.entries, engine.capacity.vocab_size, seed=self.prompt_seed)
        prompts = [contents.prompt(index) for index in range(len(workload.entries))]
        done = 0

        def request(index: int, arrival: float) -> Request:
            return core_request(workload.entries[index], str(index), prompts[index], arrival)

        def ended(index: int, observation: Observation) -> None:
            nonlocal done
            done += 1
            self.ended(f"{variant.name}, {load.words}", done, len(prompts))

        _warm(engine)
        return Driver(engine.loop, workload, request, ended=ended).run(self.stop)


def _warm(engine: Engine) -> None:
    """One short request that is not measured: memory is touched for the first time, threads are woken."""
    prompt = tuple(range(min(32, engine.capacity.vocab_size)))
    request = Request(request_id="warm", prompt_token_ids=prompt, forced_output_tokens=4)
    engine.loop.add(replace(request, params=replace(request.params, max_tokens=4, ignore_eos=True)))
    engine.loop.run()
