"""Read a low-rank adapter from the folder that PEFT writes: two matrices for each module, by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inflight.core.types.sampling import MAX_RANK
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.hub import fetch_folder
from inflight.execution.checkpoints.safetensors_file import SafetensorsFile
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.lora import CONFIG, read_lora_config

_WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<which>[AB])(?:\.default)?\.weight")


class ModuleShape(NamedTuple):
    """The shape of a module's matrix, which is that of B · A, and the rank between them."""

    rows: int
    columns: int
    rank: int


class LoraFiles:
    """modules: by name, as the model's own are called in transformers. rank: the largest."""

    def __init__(self, folder: Path) -> None:
        """Open an adapter. Raises ModelError for missing or damaged files, and for adapters of other kinds."""
        self.folder, self.config = folder, read_lora_config(folder)
        if not (folder / _WEIGHTS).is_file():
            pickled = " (adapter_model.bin is a pickle, which can run code when it is opened, and is refused)"
            raise ModelError(
                f"{folder} holds no {_WEIGHTS}{pickled if (folder / 'adapter_model.bin').exists() else ''}; save the "
                "adapter with PEFT's save_pretrained(folder, safe_serialization=True)."
            )
        self._file = SafetensorsFile(folder / _WEIGHTS)
        self._names = self._tensor_names()
        self.modules = {module: self._shape(module) for module in sorted(self._names)}
        self.rank = max(shape.rank for shape in self.modules.values())

    @property
    def elements(self) -> int:
        return sum(shape.rank * (shape.rows + shape.columns) for shape in self.modules.values())

    def down(self, module: str) -> Array:
        """Return A, [rank, columns], as it is stored."""
        return self._file.tensor(self._names[module]["A"])

    def up(self, module: str) -> Array:
        """Return B times its factor, float32[rows, rank]."""
        stored = self._file.tensor(self._names[module]["B"])
        values = from_bf16(stored) if stored.dtype == np.uint16 else stored.astype(np.float32)
        scaled: Array = values * np.float32(self.config.factor(module, self.modules[module].rank))
        return scaled

    def _tensor_names(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for name in self._file.entries:
            match = _TENSOR.fullmatch(name)
            if match is None:
                raise ModelError(
                    f"tensor {shown(name)} in {self._file.path} is no A or B of a linear module; adapters here change "
                    "those alone, so merge it into the model with merge_and_unload()."
                )
            found.setdefault(match["module"], {})[match["which"]] = name
        if not found:
            raise ModelError(f"{self._file.path} holds 0 tensors; save the adapter again.")
        for module, names in found.items():
            if len(names) < 2:
                missing = "B" if "A" in names else "A"
                raise ModelError(f"{self._file.path} lacks lora_{missing} of {shown(module)}; save the adapter again.")
        return found

    def _shape(self, module: str) -> ModuleShape:
        down, up = (self._file.entries[self._names[module][which]].shape for which in "AB")
        if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not down[0]:
            raise ModelError(
                f"A and B of {shown(module)} in {self._file.path} have shapes {list(down)} and {list(up)}, which do "
                "not make a product [rank, inputs] by [outputs, rank]; save the adapter again."
            )
        if down[0] > MAX_RANK:
            raise ModelError(f"{shown(module)} in {self._file.path} has rank {down[0]}, above {MAX_RANK}; merge it.")
        return ModuleShape(up[0], down[1], down[0])


def resolve_lora(name: str) -> Path:
    """Return an adapter's folder: an existing path as it is, anything else fetched from the hub as an id. Raises
    ModelError."""
    path = Path(name).expanduser()
    if not path.exists() and not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        raise ModelError(
            f"adapter {name!r} does not exist, and is no hub id either; give a folder saved by PEFT, or owner/name."
        )
    return path if path.exists() else fetch_folder(name, [CONFIG, _WEIGHTS])
