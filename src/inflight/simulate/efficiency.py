"""How much of a GPU's data sheet kernels reach, from efficiency.toml, and how that varies with a step's size."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Case = Literal["low", "typical", "high"]
Latency = Literal["ttft", "tpot"]
LATENCIES: tuple[Latency, ...] = ("ttft", "tpot")  # whose spread is known
FILE = Path(__file__).with_name("efficiency.toml")
ELSE = "else"  # figures where a GPU has none of its own
CPU = "cpu"  # estimates for processors


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of a data sheet's rates, factors, sizes and times; efficiency.toml says what each is of.

    Attributes:
        linear_compute, expert_compute, expert_untuned, prefill_compute, decode_compute, recurrent_compute: Shares
            of the peak in bf16, from 0 to 1.
        linear_memory, expert_memory, decode_memory, recurrent_memory: Shares of the bandwidth, of experts above 1 where
            fewer are read than by even choices.
        fp8_compute, widened_compute, expert_fp8, expert_fp4, expert_cutlass, expert_widened, prefill_narrow,
            prefill_fp8, decode_fp8: Factors on such a share of the peak.
        sinks, mixed_decode, all_reduce, exchange: Factors on prefill_compute and decode_memory; on decode_memory; on
            seconds.
        expert_width, expert_fp8_width, expert_fp4_width: Elements of an expert's hidden layer on one GPU.
        expert_tokens: Tokens of an expert.
        prefill_tile, decode_tile: Positions that a query or a row costs beside those it sees.
        layer_launch, fp8_launch, expert_launch, expert_fp8_launch, expert_fp4_launch, latent_launch, recurrent_launch:
            Seconds of a layer.
    """

    linear_compute: float
    linear_memory: float
    fp8_compute: float
    fp8_launch: float
    widened_compute: float
    expert_compute: float
    expert_memory: float
    expert_width: float
    expert_tokens: float
    expert_untuned: float
    expert_fp8: float
    expert_fp8_width: float
    expert_fp4: float
    expert_fp4_width: float
    expert_cutlass: float
    expert_widened: float
    prefill_compute: float
    prefill_tile: float
    prefill_narrow: float
    prefill_fp8: float
    sinks: float
    decode_compute: float
    decode_fp8: float
    decode_memory: float
    decode_tile: float
    mixed_decode: float
    all_reduce: float
    exchange: float
    layer_launch: float
    expert_launch: float
    expert_fp8_launch: float
    expert_fp4_launch: float
    latent_launch: float
    recurrent_compute: float
    recurrent_memory: float
    recurrent_launch: float


@functools.cache
def read_shares(path: Path = FILE) -> Mapping[str, Mapping[str, object]]:
    """Return the tables of the file. Raises ValueError where one refers to a table that the file lacks."""
    import tomllib  # read when asked for: most commands need no data sheets

    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, table in tables.items():
        others = table.get("others", ELSE)
        if others not in tables:
            raise ValueError(f"{path.name}, {name}: others is {others!r}; name a table of the file.")
    return tables


def like(gpu: str) -> str:
    """Return the GPU whose kernels this one has; its own name where that is in no alias."""
    return str(read_shares()["aliases"].get(gpu, gpu))


def measured_family(gpu: str) -> str | None:
    """Return the GPU or processor whose shares are used for this one; None: those of [else], or of most processors.

    A GPU's name begins with that of its like. Processors that do may have no matrix units, so that theirs are listed.
    """
    named = like(gpu)
    for family, table in read_shares().items():
        names = table.get("names")
        if family in (ELSE, CPU, "spread", "aliases"):
            continue
        if named in names if isinstance(names, list) else named.startswith(family):
            return family
    return None


def kernels_name(name: str, is_processor: bool) -> str:
    """Return the name by which a GPU's shares are known: its own, of most processors that of all."""
    return CPU if is_processor and measured_family(name) is None else name


def is_estimated(gpu: str) -> bool:
    """Return whether the shares of a GPU are estimates: no run and no kernel of its like was fitted, so that it has
    those of others alone."""
    family = measured_family(gpu)
    return family is None or read_shares()[family].keys() <= {"names", "others"}


def tables_of(gpu: str) -> tuple[str, ...]:
    """Return the tables that the shares of a GPU are from; what a later one has goes before the same of those before
    it."""
    family = gpu if gpu in (ELSE, CPU) else measured_family(gpu) or ELSE
    others = str(read_shares()[family].get("others", ELSE))
    return tuple(dict.fromkeys((ELSE, others, family)))


@functools.cache
def efficiencies(gpu: str) -> Efficiencies:
    """Return the shares of a GPU."""
    return combined([read_shares()[table] for table in tables_of(gpu)])


def combined(tables: Iterable[Mapping[str, object]]) -> Efficiencies:
    """Return the shares that these tables have together, of which later ones go first."""
    found = {key: value for table in tables for key, value in table.items()}
    return Efficiencies(**{one.name: float(found[one.name.replace("_", "-")]) for one in fields(Efficiencies)})  # type: ignore[arg-type]


def has_own_spread(gpu: str) -> bool:
    """Return whether enough runs of a GPU were fitted for a spread."""
    fitted = read_shares()["spread"]["fitted"]
    assert isinstance(fitted, list)
    return measured_family(gpu) in fitted


def spread(gpu: str, with_experts: bool, case: Case) -> float:
    """Return the factor on the time of a token, and so of a step, at this end of the fit's spread; low is the slow
    one."""
    return _end("unmeasured" if not has_own_spread(gpu) else "experts" if with_experts else "dense", case)


def latency_spread(latency: Latency, case: Case) -> float:
    """Return the factor on a latency at this end of the fit's spread."""
    return _end(latency, case)


def _end(name: str, case: Case) -> float:
    if case == "typical":
        return 1.0
    found = read_shares()["spread"][name]
    assert isinstance(found, list)
    return float(found[1 if case == "low" else 0])


@dataclass(frozen=True, slots=True)
class Profile:
    """How rates of matrices vary with a step's size. Each table has sizes and the share of the rate at large ones that
    they reach, between them straight in the size's logarithm.

    Attributes:
        tokens: By the tokens of a step.
        shards: By the bytes of one layer's weights on one GPU, as bf16.
        tile, slower: By how much reading weights slows down from one token to `tile` of them.
    """

    tokens: Sequence[tuple[float, float]]
    shards: Sequence[tuple[float, float]]
    tile: int
    slower: float

    def token_share(self, tokens: float) -> float:
        """Return the share of the rate of large steps; a step of fewer tokens leaves matrix units idle."""
        return _straight_in_log(self.tokens, tokens)

    def shard_share(self, shard_bytes: float) -> float:
        """Return the share of the rate over large shards."""
        return _straight_in_log(self.shards, shard_bytes)

    def reading_factor(self, tokens: float) -> float:
        """Return the factor on the time to read weights, as a step's tokens fill a kernel's tile."""
        return 1 + self.slower * min(1.0, tokens / self.tile)


_GPU = Profile(
    # A100, Llama-3-8B; from one token to 64 of them 0.26 ms of a layer become 0.31
    tokens=((32, 0.50), (64, 0.60), (128, 0.70), (256, 0.92), (512, 0.98), (1024, 1.0)),
    # Llama 70B and 7B under 1 to 8 GPUs
    shards=((50e6, 0.65), (200e6, 0.86), (430e6, 0.95), (850e6, 0.96), (1700e6, 1.0)),
    tile=64,
    slower=0.17,
)
# This engine's products of the layers of Qwen2.5-0.5B, of 30 MB each, on two cores (docs/results/kernels.md): 0.91 of
# the peak with 32 tokens and 0.94 with 512, and with 8 tokens 1.08, 1.29 and 1.18 times as long as with one, in bf16,
# int8 and int4.
_PROCESSOR = Profile(tokens=((1, 1.0),), shards=((1, 1.0),), tile=8, slower=0.18)
MAX_MEASURED_TOKENS = 4096  # of the steps that were measured
MIN_SHARD_BYTES = 50e6  # bytes in bf16


def profile(is_processor: bool) -> Profile:
    """Return how rates of matrices vary with a step's size, on GPUs or on processors."""
    return _PROCESSOR if is_processor else _GPU


def saturation(size: float, half: float) -> float:
    """Return the share of the rate at large sizes, where at the size `half` half of it is reached."""
    return size / (size + half)


def _straight_in_log(table: Sequence[tuple[float, float]], at: float) -> float:
    if at <= table[0][0]:
        return table[0][1]
    for (left, low), (right, high) in itertools.pairwise(table):
        if at <= right:
            return low + (high - low) * math.log(at / left) / math.log(right / left)
    return table[-1][1]
