"""Published measurements: runs of an engine whose settings and figures others have published, from measurements.toml.

A source is one page, or one model on one GPU of a page with many. Half of the sources are for fitting, the others are
held out: which a source is follows from a hash of its id alone. A measurement that is not
believed stays in the file with its `doubt`, and counts in neither half.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.published.defaults import bench_limits, default_limits
from benchmarks.published.lengths import lengths_of
from inflight.models import known as well_known
from inflight.models.known import read_model
from inflight.models.spec import ModelSpec
from inflight.simulate.hardware import Gpu, Precision, find_gpu
from inflight.simulate.parallelism import Parallelism
from inflight.workload.workload import Entry, Workload

FILE = Path(__file__).with_name("measurements.toml")
# config.json of each model: those that are known by name, and those of the tests
SHAPES = (Path(well_known.__file__).parent / "well_known", Path(__file__).parents[2] / "tests/models/published")
ALL_AT_ONCE = 0  # a concurrency


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine of a run. asynchronous: plans the next step while one is computed."""

    name: str
    version: str
    asynchronous: bool

    def __str__(self) -> str:
        return f"{self.name} {self.version}{' async' if self.asynchronous else ''}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a run; None: not published. Latencies are means in milliseconds."""

    output_tokens_per_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


FIGURES = ("output_tokens_per_s", "ttft_ms", "tpot_ms")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One published run.

    Attributes:
        source: id of its source; several measurements have the same.
        prompt, output: tokens of a request, of `dataset` in the mean.
        concurrency: requests that the client has in flight; ALL_AT_ONCE: it sends all at the beginning.
        dataset: whose distribution of lengths it has; "": all are alike.
        parallelism: how GPUs share the model.
        max_num_seqs, max_num_batched_tokens: of all data-parallel groups together.
        memory_share: of the GPU's memory that the engine takes.
        steady: whether a closed loop was measured after it had warmed up: its streams have fallen out of step.
        served: whether requests came over HTTP; TensorRT-LLM's own benchmark and vLLM's latency test feed the engine.
        doubt: why it is not believed; "": it is.
    """

    source: str
    url: str
    date: str
    engine: Engine
    model: str
    gpu_name: str
    parallelism: Parallelism
    weights: str
    kv: Precision
    prompt: int
    output: int
    requests: int
    concurrency: int
    dataset: str
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_share: float
    figures: Figures
    steady: bool = False
    served: bool = False
    doubt: str = ""
    note: str = ""

    @property
    def held_out(self) -> bool:
        """Whether its source is in the half that nothing is fitted on."""
        return hashlib.sha256(self.source.encode()).digest()[0] % 2 == 1

    @property
    def name(self) -> str:
        """A name of its own."""
        load = f"{self.requests} at once" if self.concurrency == ALL_AT_ONCE else f"{self.concurrency} streams"
        one = self.parallelism
        gpus = self.gpu_name if one.gpus == 1 else f"{one.gpus} × {self.gpu_name}"
        gpus = gpus if one.is_tensor_alone else f"{gpus} ({one})"
        lengths = f"{self.dataset or ''} {self.prompt}/{self.output}".strip()
        kv = "" if self.kv == "bf16" else f" kv {self.kv}"
        return f"{self.model} {self.weights}{kv}, {gpus}, {self.engine}, {lengths}, {load}"

    @property
    def shape(self) -> Path:
        """The model's config.json."""
        return next(path for folder in SHAPES if (path := folder / f"{self.model}.json").exists())

    @cached_property
    def spec(self) -> ModelSpec:
        return read_model(str(self.shape))

    @property
    def gpu(self) -> Gpu:
        return find_gpu(self.gpu_name)

    @property
    def workload(self) -> Workload:
        """The requests as the client sent them; those of a dataset with lengths drawn from its distribution."""
        lengths = lengths_of(self.dataset, self.prompt, self.output, self.requests)
        entries = tuple(Entry(0.0, prompt, output) for prompt, output in self._warm_up + lengths)
        if self.concurrency == ALL_AT_ONCE:
            return Workload(entries, "at once")
        return Workload(entries, f"closed loop of {self.concurrency}", self.concurrency, closed=True)

    @property
    def warm_up_requests(self) -> int:
        """Requests at the beginning of `workload` that the figures are not of."""
        return len(self._warm_up)

    @property
    def _warm_up(self) -> list[tuple[int, int]]:
        """The first request of each stream, with the rest of an answer, drawn evenly: the streams end at any time."""
        draws = random.Random(0)
        streams = self.concurrency if self.steady else 0
        return [(self.prompt, draws.randint(1, self.output)) for _ in range(streams)]


def read_measurements(path: Path = FILE) -> list[Measurement]:
    """Return all measurements, in the file's order."""
    sources = tomllib.loads(path.read_text(encoding="utf-8"))["source"]
    return [_measurement(source, run) for source in sources for run in source["run"]]


def _measurement(source: dict[str, Any], run: dict[str, Any]) -> Measurement:
    engine = Engine(source["engine"], source["version"], source.get("async_scheduling", False))
    parallelism = Parallelism(
        source.get("tensor_parallel", 1), source.get("expert_parallel", 1), source.get("data_parallel", 1)
    )
    rows, tokens = (one * parallelism.data_attention for one in default_limits(engine.name, find_gpu(source["gpu"])))
    made = Measurement(
        source=source["id"],
        url=source["url"],
        date=source["date"],
        engine=engine,
        model=source["model"],
        gpu_name=source["gpu"],
        parallelism=parallelism,
        weights=source.get("weights", "bf16"),
        kv=source.get("kv", "bf16"),
        prompt=run["prompt"],
        output=run["output"],
        requests=run["requests"],
        concurrency=run.get("concurrency", ALL_AT_ONCE),
        dataset=run.get("dataset", ""),
        max_num_seqs=source.get("max_num_seqs", rows),
        max_num_batched_tokens=source.get("max_num_batched_tokens", tokens),
        memory_share=source.get("memory_share", 0.9),
        figures=Figures(*(run.get(name) for name in FIGURES)),
        steady=source.get("steady", False),
        served=source.get("served", "ttft_ms" in run),
        doubt=source.get("doubt", ""),
        note=source.get("note", ""),
    )
    if engine.name != "tensorrt-llm" or made.served:
        return made
    weights, kv = made.weights, made.kv
    limits = bench_limits(made.spec, made.gpu, parallelism, weights, kv, made.prompt, made.output)  # type: ignore[arg-type]
    rows, tokens = (one * parallelism.data_attention for one in limits)
    return replace(made, max_num_seqs=rows, max_num_batched_tokens=tokens)
