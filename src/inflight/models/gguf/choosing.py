"""Choose a GGUF file: of a folder, or of a hub repository by the name of its quantization.

Names are `Model-Q4_K_M.gguf`, those of parts, and those of encoders of images beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import is_gguf, model_name, part_paths

_MAX_SHOWN = 12
_QUANTIZATION = re.compile(
    r"(?:^|[-._])(?P<tag>(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|B?F16|F32|FP16|FP32))(?=$|[-.])", re.I
)


def models_among(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Whole models: their files, first the one that opens them. Encoders of images (`mmproj`) and importance matrices
    are no models."""
    gguf = sorted(name for name in names if is_gguf(Path(name)) and not re.search(r"mmproj|imatrix", name))
    found: dict[str, tuple[str, ...]] = {}
    for name in gguf:
        try:
            parts = [path.as_posix() for path in part_paths(Path(name))]
        except ModelError:  # a number that no part has
            parts = [name]
        found.setdefault(parts[0], tuple(parts))
    return list(found.values())


def model_in(folder: Path) -> Path | None:
    """Return the GGUF model of a folder; None where it has none, or safetensors weights as well. Raises ModelError
    where it has several."""
    if any(folder.glob("*.safetensors")):
        return None
    found = models_among(path.name for path in folder.glob("*"))
    if len(found) > 1:
        raise ModelError(
            f"{folder} holds {len(found)} GGUF models ({_list(one[0] for one in found)}); name the file that is meant."
        )
    return folder / found[0][0] if found else None


def named(tag: str, names: Sequence[str], repository: str) -> tuple[str, ...]:
    """Return the files of the one model whose name contains the quantization `tag`, in any case. Raises ModelError."""
    models = models_among(names)
    if not models:
        raise ModelError(f"the hub repository {repository} holds no GGUF files; leave :{tag} out, or name another one.")
    pattern = re.compile(rf"(?:^|[-._/]){re.escape(tag)}(?:[-./]|$)", re.IGNORECASE)
    exact = [one for one in models if PurePosixPath(one[0]).name.lower() in (tag.lower(), f"{tag.lower()}.gguf")]
    found = exact or [one for one in models if pattern.search(one[0])]
    if len(found) == 1:
        return found[0]
    what = "none" if not found else f"{len(found)} ({_list(one[0] for one in found)})"
    raise ModelError(
        f"of the GGUF files of {repository}, {what} can be meant by {tag!r}; there are "
        f"{_list(one[0] for one in models)}: write {repository}:NAME with a quantization or a file of these."
    )


def quantization_of(file: str, models: Sequence[tuple[str, ...]] = ()) -> str:
    """Return the quantization that a file's name says, such as `Q4_K_M`; else its name without suffix and number.

    Args:
        file: The first of a model's files.
        models: All of the repository; where two have that quantization, the file's name is what distinguishes them.
    """
    name = model_name(Path(file))
    found = _QUANTIZATION.search(name)
    tag = found["tag"].upper() if found is not None else name
    same = [one for one in models if one[0] != file and quantization_of(one[0]) == tag]
    return name if same else tag


def is_plain(quantization: str) -> bool:
    """Return whether these are plain numbers, which take twice the memory of 8 bits or more."""
    return quantization in ("F16", "BF16", "F32", "FP16", "FP32")


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:_MAX_SHOWN]) + (f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else "")
