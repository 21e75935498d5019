"""Adapters of an engine: how many at a time, of which rank, and those that are named at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from inflight.config.engine import EngineSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.core.types.sampling import DEFAULT_RANK, MAX_RANK
from inflight.execution.adapters import AdapterMatrices
from inflight.execution.backends.protocol import Device
from inflight.execution.checkpoints.lora_files import LoraFiles, resolve_lora
from inflight.execution.passes import PassDecoder
from inflight.execution.sizes import ITEM_BYTES
from inflight.frontend.adapter_names import AdapterNameError, AdapterNames
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec

DEFAULT_SLOTS = 8


class AdapterPlan(Struct, frozen=True):
    """Adapters of an engine. slots, rank: 0 where there are none. named: files of those of `--lora`, by name."""

    slots: Resolved
    rank: Resolved
    named: dict[str, LoraFiles]

    @property
    def num_slots(self) -> int:
        return int(self.slots.value)

    @property
    def max_rank(self) -> int:
        return int(self.rank.value)


def plan_adapters(settings: EngineSettings) -> AdapterPlan:
    """Resolve adapters before a model is loaded. Raises SettingsError; ModelError for an adapter's files."""
    named = {name: LoraFiles(resolve_lora(path)) for name, path in settings.named_loras}
    if not named and not settings.max_loras:
        return AdapterPlan(Resolved(0, "no --lora and no --max-loras"), Resolved(0, "there are no adapters"), {})
    _check_engine(settings)
    slots = Resolved(DEFAULT_SLOTS, "adapters in memory at a time; --max-loras changes it")
    if settings.max_loras is not None:
        slots = Resolved(settings.max_loras, "as set: adapters in memory at a time")
    return AdapterPlan(slots, _rank(settings, named), named)


def matrices_of(plan: AdapterPlan, decoder: PassDecoder, model: ModelSpec) -> AdapterMatrices | None:
    """Return the matrices of the loaded model that adapters change.

    Raises:
        ModelError: an adapter of `--lora` does not fit.
        SettingsError: no adapter fits this model.
    """
    if not plan.num_slots:
        return None
    weights = decoder.weight_slices
    if not weights:
        raise SettingsError("--max-loras: what computes this model takes no adapters; leave --backend out.")
    matrices = AdapterMatrices(model, weights)
    for name, files in plan.named.items():
        try:
            matrices.check(files)
        except ModelError as error:
            raise ModelError(f"--lora {name}: {error}") from None
    return matrices


def adapter_bytes(plan: AdapterPlan, matrices: AdapterMatrices | None, backend: Device) -> int:
    """Return the bytes of all slots, each with an adapter of the largest rank for every matrix."""
    if matrices is None:
        return 0
    return plan.num_slots * matrices.max_bytes(plan.max_rank, ITEM_BYTES[backend.dtype])


def adapter_names(plan: AdapterPlan, matrices: AdapterMatrices | None) -> AdapterNames:
    """Return the adapters that requests may name, checked against the model. Raises SettingsError."""
    names = AdapterNames(None if matrices is None else _adapter_check(matrices, plan.max_rank))
    for name, files in plan.named.items():
        try:
            names.add(name, files.folder)
        except AdapterNameError as error:
            raise SettingsError(f"--lora: {error}") from None
    return names


def _adapter_check(matrices: AdapterMatrices, max_rank: int) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        files = LoraFiles(path)
        if files.rank > max_rank:
            raise ModelError(
                f"{path} has rank {files.rank}, but memory is reserved for rank {max_rank}; start the engine with "
                f"--max-lora-rank {files.rank}."
            )
        matrices.check(files)

    return check


def _rank(settings: EngineSettings, named: dict[str, LoraFiles]) -> Resolved:
    largest = max((files.rank for files in named.values()), default=0)
    if settings.max_lora_rank is None:
        if largest > DEFAULT_RANK:
            return Resolved(largest, "the largest of those of --lora")
        return Resolved(DEFAULT_RANK, "memory is reserved for it; --max-lora-rank changes it")
    if largest > settings.max_lora_rank:
        name = next(name for name, files in named.items() if files.rank == largest)
        raise SettingsError(
            f"--lora {name} has rank {largest}, above --max-lora-rank {settings.max_lora_rank}; raise that, up to "
            f"{MAX_RANK}."
        )
    return Resolved(settings.max_lora_rank, "as set: memory is reserved for it")


def _check_engine(settings: EngineSettings) -> None:
    if settings.tensor_parallel_size > 1:
        raise SettingsError(
            f"--lora and --max-loras need one device, and --tensor-parallel-size is {settings.tensor_parallel_size}: "
            "adapters are not cut into shards; run a replica on each GPU, or merge the adapter into the model."
        )
    if settings.backend == "transformers":
        raise SettingsError("--lora and --max-loras are for our own kernels; leave --backend transformers out.")
