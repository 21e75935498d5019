"""GPUs by name: memory, bandwidth, dense peak rates, links and example prices, from hardware.toml or a --hardware-file.

Quantized checkpoints keep tables and head in bf16, and so do the bytes of weights here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from inflight.counted import did_you_mean
from inflight.models.arithmetic import Packing

# Storage of weights, keys and values; int4 and mxfp4 are for weights alone, and computed in bf16. Checkpoints in mxfp4
# keep all but experts in bf16.
Precision = Literal["bf16", "fp8", "int8", "int4", "mxfp4"]
# Bytes of a weight of a layer's matrix. 32 inputs share a scale of two bytes, in int4 an offset of two bytes, too.
# In mxfp4 32 share one of a byte.
WEIGHT_BYTES: dict[Precision, float] = {
    "bf16": 2,
    "fp8": 1,
    "int8": 1 + 2 / 32,
    "int4": 0.5 + 4 / 32,
    "mxfp4": 0.5 + 1 / 32,
}
ITEM_BYTES: dict[Precision, float] = {"bf16": 2, "fp8": 1, "int8": 1}  # of an activation, a key or a value


def packing(precision: Precision) -> Packing:
    """Return the bytes of a model's weights as this engine packs plain ones: beside int4, projections to values stay in
    int8, and each output of a quantized matrix has a factor of four bytes."""
    item, bf16 = WEIGHT_BYTES[precision], WEIGHT_BYTES["bf16"]
    return Packing(
        matrix=bf16 if precision == "mxfp4" else item,
        expert=item if precision == "mxfp4" else None,
        head=bf16,
        table=bf16,
        other=bf16,
        matrix_scale=4 if precision in ("int8", "int4") else 0,
        values=WEIGHT_BYTES["int8"] if precision == "int4" else None,
    )


GB = 10**9


class HardwareError(ValueError):
    """A GPU is not known, or its description is wrong; the message says how to give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, in the units of data sheets: GB = 10⁹ bytes, TFLOP/s without structured sparsity.

    link: how the GPUs of a node reach each other. link_gb_per_s: one way, of one GPU. node_gpus: GPUs in a node.
    domain_gpus: GPUs that the link reaches, where they are not those of one node: 72 of a GB200 NVL72.
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
    domain_gpus: int | None = None
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

    @property
    def network_bytes_per_s(self) -> float:
        return self.between_nodes_gb_per_s * GB

    @property
    def domain(self) -> int:
        """Return the GPUs that reach each other by the link: those of a node, or of a rack with switches of its own."""
        return self.domain_gpus or self.node_gpus

    def flops_per_s(self, precision: Precision) -> float:
        """Return the peak of the matrix units; a precision without units is computed in bf16 (weights are widened)."""
        return (self._peaks()[precision] or self.bf16_tflops) * 1e12

    def computes(self, precision: Precision) -> bool:
        """Return whether the GPU has matrix units for a precision."""
        return self._peaks()[precision] is not None

    def _peaks(self) -> dict[Precision, float | None]:
        return {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "int8": self.int8_tops, "int4": None, "mxfp4": None}

    def ridge_tokens(self, precision: Precision = "bf16") -> float:
        """Return the tokens of a step from which on it is compute-bound: peak · bytes per weight / (2 · bandwidth),
        weights alone."""
        return self.flops_per_s(precision) * WEIGHT_BYTES[precision] / (2 * self.bytes_per_s)


_HOW = (
    "describe it in a TOML file and give that with --hardware-file: a table [gpus.NAME] with memory-gb, "
    "bandwidth-gb-per-s and bf16-tflops, and what else is known of it (fp8-tflops, int8-tops, link-gb-per-s, "
    "node-gpus, price-per-hour, provenance)"
)
_SHEETS = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True, slots=True)
class DataSheets:
    """The GPUs of hardware.toml. aliases: other spellings of their names."""

    gpus: Mapping[str, Gpu]
    aliases: Mapping[str, str]


@functools.cache
def data_sheets(path: Path = _SHEETS) -> DataSheets:
    """Read the data sheets that come with this package; a second call returns the same ones. Raises HardwareError."""
    source = f"The data sheets in {path}"
    values = _read(path, source)
    tables, aliases = values.get("gpus"), values.get("aliases")
    if not isinstance(tables, dict) or not isinstance(aliases, dict) or len(values) != 2:
        raise HardwareError(
            f"{source} hold the tables {', '.join(values)}, where gpus and aliases are needed; install inflight again."
        )
    gpus = {gpu.name: gpu for gpu in (_gpu(source, name, table) for name, table in tables.items())}
    for gpu in gpus.values():
        if not gpu.provenance:
            raise HardwareError(f"{source}, GPU {gpu.name!r} lacks provenance; name the source of its figures.")
    for alias, name in aliases.items():
        if name not in gpus:
            raise HardwareError(f"{source}, alias {alias!r} is {name!r}; give one of {', '.join(gpus)}.")
    return DataSheets(gpus, aliases)


def find_gpu(name: str, others: Iterable[Gpu] = (), option: str = "") -> Gpu:
    """Return a GPU by name.

    Args:
        name: Of the GPU, in any spelling.
        others: Those of a --hardware-file, which go first.
        option: That gives the name, for the error.

    Raises:
        HardwareError: None has this name.
    """
    sheets = data_sheets()
    known = {**sheets.gpus, **{gpu.name: gpu for gpu in others}}
    asked = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("amd-")
    if asked in known:
        return known[asked]
    if asked in sheets.aliases:
        return known[sheets.aliases[asked]]
    hint = did_you_mean(asked, [*known, *sheets.aliases])
    wrong = f"{option} is {name!r}" if option else f"The GPU {name!r} is not known"
    raise HardwareError(f"{wrong}; known are {', '.join(known)}.{hint} To add one, {_HOW}.")


def read_hardware_file(path: Path) -> tuple[Gpu, ...]:
    """Return the GPUs of a TOML file's `[gpus.NAME]` tables. Raises HardwareError."""
    source = f"--hardware-file {path}"
    values = _read(path, source)
    tables = values.get("gpus")
    if not isinstance(tables, dict) or not tables or set(values) != {"gpus"}:
        raise HardwareError(
            f"{source} holds {len(tables) if isinstance(tables, dict) else 0} GPUs; to add one, {_HOW}."
        )
    gpus = (_gpu(source, name, table) for name, table in tables.items())
    return tuple(gpu if gpu.provenance else replace(gpu, provenance=f"as {path.name} says") for gpu in gpus)


def _read(path: Path, source: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HardwareError(f"{source} cannot be read: {error}.") from None


_TEXTS = ("link", "provenance")
_NEEDED = ("memory_gb", "bandwidth_gb_per_s", "bf16_tflops")


def _gpu(source: str, name: str, table: Any) -> Gpu:
    where = f"{source}, GPU {name!r}"
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
            raise HardwareError(f"{where} lacks {key.replace('_', '-')}, without which no step time can be computed.")
    for key in ("node_gpus", "domain_gpus"):
        if given.get(key, 1) != int(given.get(key, 1)):
            raise HardwareError(f"{where}: {key.replace('_', '-')} is {given[key]}; give a whole number.")
    return Gpu(name=name.lower(), **given)
