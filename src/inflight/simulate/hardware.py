"""GPUs by name: what their vendors' data sheets say, and where each figure comes from.

Knows memory, bandwidth, dense peak rates, links and example prices, how to read more of them from a file, and what
weights, keys and values are held in on one (quantized checkpoints keep tables and head in bf16, and so does this); not
how much of a peak a kernel reaches (`efficiency`).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from inflight.models.arithmetic import Packing

# What weights, keys and values are held in; int4 is of weights alone, and computed in bf16.
Precision = Literal["bf16", "fp8", "int8", "int4"]
# Bytes of a weight of a layer's matrix. 32 inputs share a scale of two bytes, in int4 an offset of two bytes, too.
WEIGHT_BYTES: dict[Precision, float] = {"bf16": 2, "fp8": 1, "int8": 1 + 2 / 32, "int4": 0.5 + 4 / 32}
ITEM_BYTES: dict[Precision, float] = {"bf16": 2, "fp8": 1, "int8": 1}  # of an activation, a key or a value


def packing(precision: Precision) -> Packing:
    """Return the bytes of a model's weights as this engine packs plain ones: beside int4, projections to values stay in
    int8, and each output of a quantized matrix has a factor of four bytes."""
    item, bf16 = WEIGHT_BYTES[precision], WEIGHT_BYTES["bf16"]
    return Packing(
        matrix=item,
        head=bf16,
        table=bf16,
        other=bf16,
        matrix_scale=4 if precision in ("int8", "int4") else 0,
        values=WEIGHT_BYTES["int8"] if precision == "int4" else None,
    )


GB = 10**9


class HardwareError(ValueError):
    """A GPU is not known, or its description is wrong; the sentence says how to give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, in the units of data sheets: GB = 10⁹ bytes, TFLOP/s without structured sparsity.

    link: how the GPUs of a node reach each other. link_gb_per_s: one way, of one GPU. node_gpus: GPUs in a node.
    between_nodes_gb_per_s: one way, of one GPU's network card. price_per_hour: an example in US dollars; prices differ
    threefold between clouds and halve within a year. provenance: where the figures come from.
    """

    name: str
    memory_gb: float
    bandwidth_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    link: str = "PCIe"
    link_gb_per_s: float = 32.0
    node_gpus: int = 8
    between_nodes_gb_per_s: float = 12.5
    host_gb_per_s: float = 25.0
    price_per_hour: float | None = None
    provenance: str = ""

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * GB

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth_gb_per_s * GB

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gb_per_s * GB

    def flops_per_s(self, precision: Precision) -> float:
        """Peak of the matrix units. What a GPU has no units for is computed in bf16 (weights widened on the fly)."""
        return (self._peaks()[precision] or self.bf16_tflops) * 1e12

    def computes(self, precision: Precision) -> bool:
        """Whether there are matrix units for it."""
        return self._peaks()[precision] is not None

    def _peaks(self) -> dict[Precision, float | None]:
        return {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "int8": self.int8_tops, "int4": None}

    def ridge_tokens(self, precision: Precision = "bf16") -> float:
        """Tokens of a step from which weights are reused often enough for arithmetic to be the limit: peak · bytes per
        weight / (2 · bandwidth), weights alone."""
        return self.flops_per_s(precision) * WEIGHT_BYTES[precision] / (2 * self.bytes_per_s)


_NVIDIA = "NVIDIA's data sheet, dense rates (the sheet's headline figures assume 2:4 sparsity and are twice these)"
_EXAMPLE = "; price: an example of on-demand clouds"

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a10g",
            memory_gb=24,
            bandwidth_gb_per_s=600,
            bf16_tflops=70,
            int8_tops=140,
            price_per_hour=1.01,
            provenance="AWS g5; it has about 70 of the 125 TFLOP/s that the A10's data sheet names" + _EXAMPLE,
        ),
        Gpu(
            name="l4",
            memory_gb=24,
            bandwidth_gb_per_s=300,
            bf16_tflops=121,
            fp8_tflops=242,
            int8_tops=242,
            provenance=_NVIDIA,
        ),
        Gpu(
            name="l40s",
            memory_gb=48,
            bandwidth_gb_per_s=864,
            bf16_tflops=362,
            fp8_tflops=733,
            int8_tops=733,
            provenance=_NVIDIA,
        ),
        Gpu(
            name="a100-40",
            memory_gb=40,
            bandwidth_gb_per_s=1555,
            bf16_tflops=312,
            int8_tops=624,
            link="NVLink",
            link_gb_per_s=300,
            between_nodes_gb_per_s=25,
            provenance=_NVIDIA + "; between nodes: one HDR200 card per GPU",
        ),
        Gpu(
            name="a100-80",
            memory_gb=80,
            bandwidth_gb_per_s=2039,
            bf16_tflops=312,
            int8_tops=624,
            link="NVLink",
            link_gb_per_s=300,
            between_nodes_gb_per_s=25,
            price_per_hour=2.21,
            provenance=_NVIDIA + "; SXM; between nodes: one HDR200 card per GPU" + _EXAMPLE + " (0.80 to 3.00 seen)",
        ),
        Gpu(
            name="a100-80-pcie",
            memory_gb=80,
            bandwidth_gb_per_s=1935,
            bf16_tflops=312,
            int8_tops=624,
            link_gb_per_s=32,
            price_per_hour=2.21,
            provenance=_NVIDIA + "; PCIe 4, without the bridge that joins two" + _EXAMPLE,
        ),
        Gpu(
            name="h100",
            memory_gb=80,
            bandwidth_gb_per_s=3350,
            bf16_tflops=989,
            fp8_tflops=1979,
            int8_tops=1979,
            link="NVLink",
            link_gb_per_s=450,
            between_nodes_gb_per_s=50,
            host_gb_per_s=50,
            price_per_hour=2.95,
            provenance=_NVIDIA + "; SXM; between nodes: one NDR400 card per GPU" + _EXAMPLE + " (1.99 to 5.00 seen)",
        ),
        Gpu(
            name="h100-pcie",
            memory_gb=80,
            bandwidth_gb_per_s=2000,
            bf16_tflops=756,
            fp8_tflops=1513,
            int8_tops=1513,
            link_gb_per_s=64,
            host_gb_per_s=50,
            provenance=_NVIDIA + "; PCIe 5, without the bridge that joins two",
        ),
        Gpu(
            name="h200",
            memory_gb=141,
            bandwidth_gb_per_s=4800,
            bf16_tflops=989,
            fp8_tflops=1979,
            int8_tops=1979,
            link="NVLink",
            link_gb_per_s=450,
            between_nodes_gb_per_s=50,
            host_gb_per_s=50,
            price_per_hour=4.0,
            provenance=_NVIDIA + "; between nodes: one NDR400 card per GPU" + _EXAMPLE + " (2.50 to 7.00 seen)",
        ),
        Gpu(
            name="b200",
            memory_gb=180,
            bandwidth_gb_per_s=7700,
            bf16_tflops=2250,
            fp8_tflops=4500,
            int8_tops=4500,
            link="NVLink",
            link_gb_per_s=900,
            between_nodes_gb_per_s=100,
            host_gb_per_s=50,
            provenance=_NVIDIA + "; the lower of the figures given (180 to 192 GB, 7.7 to 8.0 TB/s)",
        ),
        Gpu(
            name="mi300x",
            memory_gb=192,
            bandwidth_gb_per_s=5300,
            bf16_tflops=1307,
            fp8_tflops=2615,
            int8_tops=2615,
            link="Infinity Fabric",
            link_gb_per_s=448,
            between_nodes_gb_per_s=50,
            host_gb_per_s=50,
            price_per_hour=3.0,
            provenance="AMD's data sheet, dense rates; seven links of 64 GB/s" + _EXAMPLE + " (1.71 to 5.00 seen)",
        ),
    )
}
_ALIASES = {
    "a100": "a100-80",
    "a100-sxm": "a100-80",
    "a100-80gb": "a100-80",
    "a100-80-sxm": "a100-80",
    "a100-40gb": "a100-40",
    "h100-sxm": "h100",
    "h100-80": "h100",
}
_HOW = (
    "describe it in a TOML file and give that with --hardware-file: a table [gpus.NAME] with memory-gb, "
    "bandwidth-gb-per-s and bf16-tflops, and what else is known of it (fp8-tflops, int8-tops, link-gb-per-s, "
    "node-gpus, "
    "price-per-hour, provenance)"
)


def find_gpu(name: str, others: Iterable[Gpu] = ()) -> Gpu:
    """A GPU by name; `others` are those of a --hardware-file, which go first. Raises HardwareError."""
    known = {**GPUS, **{gpu.name: gpu for gpu in others}}
    asked = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("amd-")
    if asked in known:
        return known[asked]
    if asked in _ALIASES:
        return known[_ALIASES[asked]]
    near = difflib.get_close_matches(asked, [*known, *_ALIASES], 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise HardwareError(f"The GPU {name!r} is not known; known are {', '.join(known)}.{hint} To add one, {_HOW}.")


def read_hardware_file(path: Path) -> tuple[Gpu, ...]:
    """The `[gpus.NAME]` tables of a TOML file. Raises HardwareError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HardwareError(f"--hardware-file {path} cannot be read: {error}.") from None
    tables = values.get("gpus")
    if not isinstance(tables, dict) or not tables or set(values) != {"gpus"}:
        raise HardwareError(
            f"--hardware-file {path} holds {len(tables) if isinstance(tables, dict) else 0} GPUs; to add one, {_HOW}."
        )
    return tuple(_gpu(path, name, table) for name, table in tables.items())


_TEXTS = ("link", "provenance")
_NEEDED = ("memory_gb", "bandwidth_gb_per_s", "bf16_tflops")


def _gpu(path: Path, name: str, table: Any) -> Gpu:
    where = f"--hardware-file {path}, GPU {name!r}"
    if not isinstance(table, dict):
        raise HardwareError(f"{where} is no table; to add one, {_HOW}.")
    known = {item.name for item in fields(Gpu)} - {"name"}
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in given.items():
        if key not in known:
            names = ", ".join(sorted(one.replace("_", "-") for one in known))
            raise HardwareError(f"{where} has the key {key.replace('_', '-')!r}; known are {names}.")
        if key in _TEXTS:
            if not isinstance(value, str):
                raise HardwareError(f"{where}: {key} is {value!r}; give a text.")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise HardwareError(f"{where}: {key.replace('_', '-')} is {value!r}; give a number above 0.")
    for key in _NEEDED:
        if key not in given:
            raise HardwareError(f"{where} lacks {key.replace('_', '-')}, without which no step time can be told.")
    if given.get("node_gpus", 1) != int(given.get("node_gpus", 1)):
        raise HardwareError(f"{where}: node-gpus is {given['node_gpus']}; give a whole number.")
    given.setdefault("provenance", f"as {path.name} says")
    return Gpu(name=name.lower(), **given)
