"""A whole model in GGUF: one file, or all parts of a split one, whichever of them was named.

Parts are named `…-00001-of-00003.gguf`, and each must agree with the others. The first part has the metadata.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_file import GGUFFile, TensorEntry

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS = 2**10
_AGAIN = "download all parts of one model."


class GGUFModel:
    """`metadata`, and `tensors`: for each name its file and where it lies there."""

    def __init__(self, path: Path) -> None:
        """Open and check every part. Raises ModelError for one that is missing, damaged or of another model."""
        paths = part_paths(path)
        missing = [one.name for one in paths if not one.is_file()]
        if missing:
            raise ModelError(
                f"{path.parent} lacks {len(missing)} of the {len(paths)} parts of the model: {', '.join(missing[:3])}"
                f"{', …' if len(missing) > 3 else ''}; {_AGAIN}"
            )
        self.path = path
        self.files = [GGUFFile(one) for one in paths]
        self.metadata = self.files[0].metadata
        self.tensors: dict[str, tuple[GGUFFile, TensorEntry]] = {}
        for number, file in enumerate(self.files):
            self._check_part(file, number)
            for name, entry in file.tensors.items():
                if name in self.tensors:
                    raise ModelError(f"{file.path} holds tensor {shown(name)}, as another part does; {_AGAIN}")
                self.tensors[name] = (file, entry)
        self._check_total()

    @property
    def architecture(self) -> str:
        """Return `general.architecture`, the prefix of all other keys. Raises ModelError."""
        found = self.metadata.text("general.architecture")
        if not found or len(found) > 100:
            raise ModelError(
                f"{self.path} does not say its general.architecture; take a GGUF file of a language model."
            )
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None where there is no such tensor."""
        return self.tensors[name][1].shape if name in self.tensors else None

    def floats(self, name: str) -> list[float] | None:
        """All values of a small tensor of F32; None where there is none. Raises ModelError for another type."""
        if name not in self.tensors:
            return None
        file, entry = self.tensors[name]
        if entry.type.name != "F32" or len(entry.shape) != 1:
            raise ModelError(f"tensor {name} in {file.path} is {entry.type.name}, but must be a row of F32.")
        return list(struct.unpack_from(f"<{entry.shape[0]}f", file.map, entry.begin))

    def _check_part(self, file: GGUFFile, number: int) -> None:
        count = file.metadata.integer("split.count") or 1
        own = file.metadata.integer("split.no") or 0
        if (own, count) != (number, len(self.files)):
            raise ModelError(
                f"{file.path} says it is part {own + 1} of {count}, but its name says {number + 1} of "
                f"{len(self.files)}; give the file the name that it was made with, or {_AGAIN}"
            )

    def _check_total(self) -> None:
        announced = self.metadata.integer("split.tensors.count")
        if announced is not None and announced != len(self.tensors):
            raise ModelError(
                f"{self.path} announces {announced:,} tensors in its {len(self.files)} parts, but they hold "
                f"{len(self.tensors):,}; {_AGAIN}"
            )


def part_paths(path: Path) -> list[Path]:
    """All parts of the model that a file belongs to, in order; the file alone where its name is no part's."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count, number = int(match["count"]), int(match["number"])
    if not 1 <= number <= count <= _MAX_PARTS:
        raise ModelError(f"{path} names itself part {number} of {count}, which cannot be; give it its own name again.")
    return [path.with_name(f"{match['stem']}-{one:05d}-of-{count:05d}{path.suffix}") for one in range(1, count + 1)]


def model_name(path: Path) -> str:
    """Return the file's name without its suffix and its number as a part."""
    match = _PART.fullmatch(path.name)
    return path.stem if match is None else match["stem"]


def gguf_at(model: Path | GGUFModel) -> GGUFModel | None:
    """Return an open model as it is, so that its header is read once; open a path to a GGUF file; None for any other
    path. Raises ModelError."""
    if isinstance(model, GGUFModel):
        return model
    return GGUFModel(model) if is_gguf(model) else None


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX and not path.is_dir()
