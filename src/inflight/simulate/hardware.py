"""GPUs and processors by name: memory, bandwidth, dense peak rates, links, power and example prices, from hardware.toml
or a --hardware-file.

Quantized checkpoints keep tables and head in bf16, and so do the bytes of weights here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from inflight.counted import cause_of
from inflight.models.arithmetic import Packing
from inflight.models.spec import WeightFormat
from inflight.simulate.efficiency import kernels_name
from inflight.simulate.gpu_names import find_name, nearest_name, spelled

# Storage of weights, keys and values; four bits are for weights alone. Checkpoints in mxfp4, and of mixtures in nvfp4,
# keep all but experts in bf16.
Precision = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
# Bytes of a weight of a layer's matrix. 32 inputs share a scale of two bytes, in int4 an offset of two bytes, too.
# In mxfp4 32 share one of a byte, in nvfp4 16.
WEIGHT_BYTES: dict[Precision, float] = {
    "bf16": 2,
    "fp8": 1,
    "int8": 1 + 2 / 32,
    "int4": 0.5 + 4 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
ITEM_BYTES: dict[Precision, float] = {"bf16": 2, "fp8": 1, "int8": 1}  # of an activation, a key or a value


def packing(precision: Precision, mixture: bool = False) -> Packing:
    """Return the bytes of a model's weights as this engine packs plain ones: beside int4, projections to values stay in
    int8, and each output of a quantized matrix has a factor of four bytes. mixture: whether the model has experts:
    those alone are quantized in nvfp4, as in mxfp4 (nvidia/DeepSeek-R1-NVFP4)."""
    item, bf16 = WEIGHT_BYTES[precision], WEIGHT_BYTES["bf16"]
    experts_alone = precision == "mxfp4" or (precision == "nvfp4" and mixture)
    return Packing(
        matrix=bf16 if experts_alone else item,
        expert=item if experts_alone else None,
        head=bf16,
        table=bf16,
        other=bf16,
        matrix_scale=4 if precision in ("int8", "int4") else 0,
        values=WEIGHT_BYTES["int8"] if precision == "int4" else None,
    )


def nearest_precision(published: WeightFormat | None) -> Precision:
    """Return the format of weights that is nearest to a published one; bf16 where that is not quantized."""
    if published is None:
        return "bf16"
    if published.method == "mxfp4":
        return "mxfp4"
    if published.method == "modelopt" and published.bits == 4:
        return "nvfp4"
    in_four = published.bits == 4 or (published.element_bytes or 1.0) < 0.75
    return "int4" if in_four else "fp8" if "fp8" in published.method else "int8"


GB = 10**9
IDLE_SHARE = 0.12  # of a board's full power, where its idle power is not known: an H200's 80 of 700 W


class HardwareError(ValueError):
    """A GPU is not known, or its description is wrong; the message says how to give one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or the processor of a socket, in the units of data sheets: GB = 10⁹ bytes, TFLOP/s without structured
    sparsity.

    device: as engines name it. served_by: engines that compute at these rates, where this one does not. link: how the
    GPUs of a node reach each other. link_gb_per_s: one way, of one GPU. node_gpus: GPUs in a node. domain_gpus: GPUs
    that the link reaches, where they are not those of one node: 72 of a GB200 NVL72. network: between nodes, "" where
    no model is divided among them, and between_nodes_gb_per_s: one way, of one GPU's network card. watts, idle_watts:
    of the board at full load and idle; None: not known. pue: of the building, its power over its machines'.
    price_per_hour: an example in US dollars, and price_source: where and when it was seen; prices differ threefold
    between clouds and halve, or double, within a year. provenance: where the figures come from.
    """

    name: str
    memory_gb: float
    bandwidth_gb_per_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    fp4_tflops: float | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    served_by: str = ""
    link: str = "PCIe"
    link_gb_per_s: float = 32.0
    node_gpus: int = 8
    domain_gpus: int | None = None
    network: str = "InfiniBand"
    between_nodes_gb_per_s: float = 12.5
    host_gb_per_s: float = 25.0
    watts: float | None = None
    idle_watts: float | None = None
    pue: float = 1.0
    price_per_hour: float | None = None
    price_source: str = ""
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
        """Return the peak of the matrix units for a precision; of those for bf16, for which weights are widened, where
        it has none, or slower ones."""
        return max(self._peaks()[precision] or 0.0, self.bf16_tflops) * 1e12

    def computes(self, precision: Precision) -> bool:
        """Return whether the GPU has matrix units for a precision that are no slower than those for bf16, as a B300's
        for int8 are."""
        return (self._peaks()[precision] or 0.0) >= self.bf16_tflops

    def _peaks(self) -> dict[Precision, float | None]:
        """Return the peak of each precision. Activations of mxfp4 have eight bits; a CPU computes int4 in int8."""
        return {
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "int8": self.int8_tops,
            "int4": self.int8_tops if self.device == "cpu" else None,
            "mxfp4": None if self.fp4_tflops is None else self.fp8_tflops,
            "nvfp4": self.fp4_tflops,
        }

    @property
    def sources(self) -> str:
        """Return where its figures and its price come from."""
        return self.provenance if not self.price_source else f"{self.provenance}; price: {self.price_source}"

    @property
    def kernels(self) -> str:
        """Return the name by which the efficiency of its kernels is known (`efficiency`)."""
        return kernels_name(self.name, self.device == "cpu")

    def ridge_tokens(self, precision: Precision = "bf16") -> float:
        """Return the tokens of a step from which on it is compute-bound: peak · bytes per weight / (2 · bandwidth),
        weights alone."""
        return self.flops_per_s(precision) * WEIGHT_BYTES[precision] / (2 * self.bytes_per_s)


_HOW = (
    "describe it in a TOML file and give that with --hardware-file: a table [gpus.NAME] with memory-gb, "
    "bandwidth-gb-per-s and bf16-tflops, and what else is known of it (fp8-tflops, int8-tops, fp4-tflops, device, "
    "link-gb-per-s, node-gpus, watts, price-per-hour, provenance)"
)
_EXAMPLES = ("l4", "l40s", "a100-80", "h100", "b200", "mi300x", "rtx-4090", "rtx-4060-laptop", "m4-max", "epyc-9654")
_SHEETS = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True, slots=True)
class DataSheets:
    """The GPUs of hardware.toml. aliases: other spellings of their names. machines: the GPU of clouds' machines, by how
    their names begin."""

    gpus: Mapping[str, Gpu]
    aliases: Mapping[str, str]
    machines: Mapping[str, str]

    def gpu_of_machine(self, name: str) -> Gpu | None:
        """Return the GPU of a cloud's machine by its name; None where it is not known."""
        asked = spelled(name)
        begins = [begin for begin in self.machines if asked.startswith(begin)]
        return self.gpus[self.machines[max(begins, key=len)]] if begins else None


@functools.cache
def data_sheets(path: Path = _SHEETS) -> DataSheets:
    """Read the data sheets that come with this package; a second call returns the same ones. Raises HardwareError."""
    source = f"The data sheets in {path}"
    values = _read(path, source)
    tables, aliases, machines = values.get("gpus"), values.get("aliases"), values.get("machines", {})
    known = {"gpus", "aliases", "machines"}
    if (
        not isinstance(tables, dict)
        or not isinstance(aliases, dict)
        or not isinstance(machines, dict)
        or set(values) - known
    ):
        raise HardwareError(
            f"{source} hold the tables {', '.join(values)}, where gpus and aliases are needed; install inflight again."
        )
    gpus = {gpu.name: gpu for gpu in (_gpu(source, name, table) for name, table in tables.items())}
    for gpu in gpus.values():
        if not gpu.provenance:
            raise HardwareError(f"{source}, GPU {gpu.name!r} lacks provenance; name the source of its figures.")
        if gpu.price_per_hour is not None and not gpu.price_source:
            raise HardwareError(
                f"{source}, GPU {gpu.name!r} lacks price-source; name where and when its price was seen."
            )
    for alias, name in {**aliases, **machines}.items():
        if name not in gpus:
            raise HardwareError(f"{source}, alias {alias!r} is {name!r}; give one of {', '.join(gpus)}.")
    return DataSheets(gpus, aliases, machines)


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

    def named(form: str) -> Gpu | None:
        return known.get(form) or known.get(sheets.aliases.get(form, ""))

    found = find_name(name, lambda form: None if (gpu := named(form)) is None else gpu.memory_gb)
    if found is not None and (gpu := named(found)) is not None:
        return gpu
    if (gpu := sheets.gpu_of_machine(name)) is not None:
        return gpu
    wrong = f"{option} is {name!r}, which is not known" if option else f"The GPU {name!r} is not known"
    near = nearest_name(name, known) or f" Known are {len(known)}, such as {', '.join(_EXAMPLES)}."
    raise HardwareError(f"{wrong}.{near} To add one, {_HOW}. The machine at hand is measured by `inflight calibrate`.")


def read_hardware_file(path: Path) -> tuple[Gpu, ...]:
    """Return the GPUs of a TOML file's `[gpus.NAME]` tables. Raises HardwareError."""
    source = f"--hardware-file {path}"
    values = _read(path, source)
    tables = values.get("gpus")
    if not isinstance(tables, dict) or not tables or set(values) != {"gpus"}:
        raise HardwareError(
            f"{source} holds {len(tables) if isinstance(tables, dict) else 0} GPUs; to add one, {_HOW}."
        )
    return tuple(_with_sources(_replaced(source, name, table), path.name) for name, table in tables.items())


def _replaced(source: str, name: str, table: Any) -> Gpu:
    """Return a file's GPU. A table of a known name may have a few keys alone, such as a price; the others stay."""
    if not isinstance(table, dict) or any(key.replace("_", "-") in table for key in _NEEDED):
        return _gpu(source, name, table)
    try:
        known = find_gpu(name)
    except HardwareError:
        return _gpu(source, name, table)
    where = f"{source}, GPU {name!r}"
    given = _values(where, table)
    return _with_power(where, replace(known, **({"price_source": ""} | given if "price_per_hour" in given else given)))


def _with_power(where: str, gpu: Gpu) -> Gpu:
    """Return the GPU. Raises HardwareError where it draws more when it is idle."""
    if gpu.watts is not None and gpu.idle_watts is not None and gpu.idle_watts > gpu.watts:
        raise HardwareError(
            f"{where}: idle-watts is {gpu.idle_watts}, above watts ({gpu.watts}); give less, or more watts."
        )
    return gpu


def _with_sources(gpu: Gpu, file: str) -> Gpu:
    said = f"as {file} says"
    priced = gpu.price_source or gpu.price_per_hour is None
    return replace(gpu, provenance=gpu.provenance or said, price_source=gpu.price_source if priced else said)


def _read(path: Path, source: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HardwareError(f"{source} cannot be read: {cause_of(error)}.") from None


_TEXTS = ("link", "network", "device", "served_by", "price_source", "provenance")
_NEEDED = ("memory_gb", "bandwidth_gb_per_s", "bf16_tflops")
_DEVICES = ("cuda", "cpu")


def _gpu(source: str, name: str, table: Any) -> Gpu:
    where = f"{source}, GPU {name!r}"
    if not isinstance(table, dict):
        raise HardwareError(f"{where} is no table; to add one, {_HOW}.")
    given = _values(where, table)
    for key in _NEEDED:
        if key not in given:
            raise HardwareError(f"{where} lacks {key.replace('_', '-')}, without which no step time can be computed.")
    return _with_power(where, Gpu(name=spelled(name), **given))


def _values(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of a table, by the names of a Gpu's fields."""
    known = {item.name for item in fields(Gpu)} - {"name"}
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in given.items():
        spelled = key.replace("_", "-")
        if key not in known:
            names = ", ".join(sorted(one.replace("_", "-") for one in known))
            raise HardwareError(f"{where} has the key {spelled!r}; known are {names}.")
        if key in _TEXTS:
            if not isinstance(value, str):
                raise HardwareError(f"{where}: {spelled} is {value!r}; give a text.")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise HardwareError(f"{where}: {spelled} is {value!r}; give a number above 0.")
    if given.get("device", "cuda") not in _DEVICES:
        raise HardwareError(f"{where}: device is {given['device']!r}; give one of {', '.join(_DEVICES)}.")
    if given.get("pue", 1) < 1:
        raise HardwareError(f"{where}: pue is {given['pue']}, a building's power over its machines'; give 1 or more.")
    for key in ("node_gpus", "domain_gpus"):
        if given.get(key, 1) != int(given.get(key, 1)):
            raise HardwareError(f"{where}: {key.replace('_', '-')} is {given[key]}; give a whole number.")
        if key in given:
            given[key] = int(given[key])
    return given
