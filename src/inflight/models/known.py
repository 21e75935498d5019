"""Find models by name: well-known ones, whose config.json files lie in `well_known`, and those in a folder or file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from inflight.counted import did_you_mean
from inflight.models.errors import ModelError
from inflight.models.family import Family
from inflight.models.gguf.choosing import model_in
from inflight.models.gguf.gguf_model import is_gguf
from inflight.models.registry import read_folder, read_json, read_spec
from inflight.models.spec import ModelSpec

_FOLDER = Path(__file__).parent / "well_known"
_SUFFIXES = re.compile(r"(-(instruct|chat|hf|it|base|v0\.\d|\d{4}))+$")


@cache
def known_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def known_model(name: str) -> ModelSpec:
    """One of `known_names`."""
    return read_spec(read_json(_FOLDER / f"{name}.json"), name=name)


def read_model(model: str, family: Family | None = None) -> ModelSpec:
    """Describe a model given by a well-known name or hub id (`llama-3-70b`), a folder with a config.json, such a
    file, or a GGUF file.

    Describes models that this engine cannot run, too. family: which it is of, whatever it is called; well-known ones
    have their own. Raises ModelError.
    """
    path = Path(model)
    gguf = model_in(path) if path.is_dir() else path if is_gguf(path) else None
    if gguf is not None:
        return read_folder(gguf)
    if path.is_dir() or path.suffix == ".json":
        return _read_file(path, family)
    name = _SUFFIXES.sub("", model.lower().rpartition("/")[2].removeprefix("meta-"))
    names = known_names()
    if name in names:
        if family is not None:
            raise ModelError(
                f"The model {name} is well known, and of a family of its own, so that --family {family.name} has no "
                "effect; leave it out, or give the folder or config.json of your model."
            )
        return known_model(name)
    raise ModelError(
        f"The shape of the model {model!r} is not known; known are {', '.join(names)}.{did_you_mean(name, names)} For "
        "any other model give its folder, or its config.json."
    )


def _read_file(path: Path, family: Family | None) -> ModelSpec:
    if path.is_dir():
        folder, path = path, path / "config.json"
        if not path.is_file():
            return read_folder(folder, family=family)  # which says what there is instead
    elif not path.exists():
        raise ModelError(f"{path} does not exist; give a model's folder or its config.json.")
    data = read_json(path)
    try:
        spec = read_spec(data, family=family)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    return replace(spec, name=path.parent.name or str(path))
