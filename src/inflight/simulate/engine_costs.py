"""Costs of engines beside their kernels at best: the host's for a step, row, request and token, from engines.toml."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from msgspec import structs

from inflight.counted import did_you_mean
from inflight.models.arithmetic import Packing
from inflight.simulate.hardware import Precision, packing

OWN = "inflight"
HARMONY = "gpt_oss"  # the family whose prompts are rendered without a template
IN_BLOCKS = ("deepseek_v3", "minimax_m2")  # families that are published in fp8, with one scale a block
FILE = Path(__file__).with_name("engines.toml")


class EngineUnknown(ValueError):
    """There are no costs of such an engine; the message says of which there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """Times in seconds; engines.toml says what each is of. name: of its table there."""

    step: float
    row: float
    overlapped: bool
    worker_step: float = 0.0
    request: float
    request_harmony: float = 0.0
    request_latency: float
    latency_harmony: float = 0.0
    token: float
    kernels: float
    all_reduce: float = 1.0
    experts_fp8: float = 1.0
    experts_fp8_width: float = 1.0
    experts_cutlass: bool = False
    fp8_attention: bool = False
    expert_skew: float = 0.0
    eager_layer: float
    prompt_layer: float | None = None
    prompt_recurrent: float = 0.0
    graph_tokens: int
    graph_step: int = 1
    graph_sizes: tuple[int, ...] = ()
    tuned_experts: tuple[str, ...] | None = None
    int4_bytes: float = 0.0
    int8_bytes: float = 0.0
    source: str = ""
    name: str = ""

    @property
    def is_own(self) -> bool:
        """Whether they are this engine's."""
        return self.name == OWN

    def step_seconds(self, rows: int) -> float:
        """Return the host's work for a step."""
        return self.step + self.row * rows

    def launch_seconds(self, tokens: int, with_decodes: bool, layers: int, recurrent: int) -> float:
        """Return the host's time to launch the layers of a step, `recurrent` of them with a state; 0 where it is a
        graph, which is of decodes alone where prompts have a time of their own."""
        if self.prompt_layer is not None and not with_decodes:
            return self.prompt_layer * layers + self.prompt_recurrent * recurrent
        return 0.0 if tokens <= self.graph_tokens else self.eager_layer * layers

    def padded(self, rows: int) -> int:
        """Return the rows that a step of decodes computes: those of the smallest graph that holds them."""
        if not rows:
            return 0
        if self.graph_sizes and rows <= self.graph_sizes[-1]:
            return self.graph_sizes[bisect_left(self.graph_sizes, rows)]
        if rows > self.graph_tokens or self.graph_step == 1:
            return rows
        return 1 << (rows - 1).bit_length() if rows <= 8 else -(-rows // self.graph_step) * self.graph_step

    def packing(self, precision: Precision, mixture: bool = False) -> Packing:
        """Return the bytes of a model's weights as the engine packs them: this engine's own, or those of checkpoints in
        AWQ, GPTQ or with a factor for each output. mixture: whether the model has experts."""
        own = packing(precision, mixture)
        given = {"int4": self.int4_bytes, "int8": self.int8_bytes}.get(precision)
        return structs.replace(own, matrix=given, matrix_scale=0, values=None) if given else own

    def tunes_experts(self, gpu: str, experts: float, width: float) -> bool:
        """Return whether the kernel of so many experts of this width in bf16 is tuned for a GPU, or as fast untuned.

        Args:
            gpu: As efficiency.toml names it.
        """
        tuned = [one.split()[1] for one in self.tuned_experts or () if one.split()[0] == gpu]
        return not tuned or f"{experts:g}x{width:g}" in tuned

    def over(self, gpus: int) -> EngineCosts:
        """Return the costs of an engine on so many GPUs, of which each has a worker."""
        return replace(self, step=self.step + self.worker_step) if gpus > 1 else self

    def of_model(self, family: str) -> EngineCosts:
        """Return the costs with those of the model's own template, where the engine has a quicker one, and of kernels
        for weights as its own checkpoint has them."""
        if family in IN_BLOCKS:
            return replace(self, experts_fp8=1.0, experts_fp8_width=1.0)
        if family != HARMONY or not self.request_harmony:
            return self
        return replace(self, request=self.request_harmony, request_latency=self.latency_harmony)


@functools.cache
def all_engine_costs(path: Path = FILE) -> Mapping[str, EngineCosts]:
    """Return the costs of each engine, by name and version."""
    import tomllib  # read when asked for: most commands need no data sheets

    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {one.name.replace("_", "-") for one in fields(EngineCosts)} - {"name"}
    found = {}
    for name, table in tables.items():
        if unknown := set(table) - known:
            raise ValueError(f"{path.name}, {name}: {', '.join(sorted(unknown))} is no cost of an engine.")
        values = {
            key.replace("-", "_"): tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        found[name] = EngineCosts(name=name, **values)  # type: ignore[arg-type]
    return found


def engine_costs(engine: str = OWN) -> EngineCosts:
    """Return the costs of an engine. Raises EngineUnknown."""
    known = all_engine_costs()
    if engine in known:
        return known[engine]
    raise EngineUnknown(
        f"--engine is {engine!r}, of which no costs are known; known are {', '.join(known)}."
        f"{did_you_mean(engine, known)}"
    )


def front_end_costs(engine: EngineCosts | None) -> EngineCosts | None:
    """Return the costs of an engine whose front end is simulated; None where it is left out: that of this engine, whose
    requests take 3 ms there, and of calibrated ones, which have it in their steps."""
    return None if engine is None or engine.is_own else engine
