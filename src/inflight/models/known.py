"""Find models by name: well-known ones, whose config.json files and further names lie in `well_known`, and those in a
folder or file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inflight.counted import did_you_mean, quoted
from inflight.models.errors import ModelError
from inflight.models.family import Family
from inflight.models.gguf.choosing import model_in
from inflight.models.gguf.gguf_model import is_gguf
from inflight.models.model_name import ModelName, compact, model_name
from inflight.models.registry import read_folder, read_json, read_spec
from inflight.models.spec import ModelSpec

_FOLDER = Path(__file__).parent / "well_known"
_SHOWN = 4  # names that an unknown one is answered with


@cache
def _names() -> dict[str, dict[str, Any]]:
    """Return `names.toml`: other names of the shapes, formats of weights by the ends of names, models without step
    times, and aliases."""
    import tomllib  # read when asked for: most commands need no data sheets

    return tomllib.loads((_FOLDER / "names.toml").read_text(encoding="utf-8"))


@cache
def known_names() -> tuple[str, ...]:
    return tuple(sorted({path.stem for path in _FOLDER.glob("*.json")} | set(_names()["shapes"])))


@cache
def known_model(name: str) -> ModelSpec:
    """Return one of `known_names`, as it is published."""
    return read_spec(_config(name), name=name)


def _config(name: str) -> dict[str, Any]:
    other = _names()["shapes"].get(name, {"like": name})
    replaced = {key: value for key, value in other.items() if key not in ("like", "source", "date")}
    return {**read_json(_FOLDER / f"{other['like']}.json"), **replaced}


@cache
def _compact_names() -> dict[str, str]:
    """Return known names by their compact forms and by those of their aliases."""
    aliases = {compact(one): str(name) for one, name in _names()["aliases"].items()}
    return aliases | {compact(one): one for one in known_names()}


@cache
def _known(asked: str) -> ModelSpec | None:
    """Find a name, a hub id or a tag, with what publishers add to it, and with its format of weights."""
    given = model_name(asked, _names()["formats"])
    known = next((_compact_names()[key] for key in map(compact, given.spellings) if key in _compact_names()), None)
    if known is None:
        return None
    if given.quantization is None or (given.is_usual and known_model(known).head is None):
        return known_model(known)
    data = _config(known)
    own = data.get("quantization_config", {}).get("quant_method")
    if own == "mxfp4" and given.weights != "nvfp4":  # its files in other formats keep experts in it, too
        return known_model(known)
    return read_spec({**data, "quantization_config": given.quantization}, name=f"{known}-{given.weights}")


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
    if (known := _known(model)) is not None:
        if family is not None:
            raise ModelError(
                f"The model {known.name} is well known, and of a family of its own, so that --family {family.name} "
                "has no effect; leave it out, or give the folder or config.json of your model."
            )
        return known
    given = model_name(model, _names()["formats"])
    if (why := _without_step_times(given)) is not None:
        raise ModelError(f"There are no step times for {quoted(model)}: {why}")
    near = _nearest(given.plain) or f" None of the {len(known_names())} known ones is called alike."
    raise ModelError(
        f"The shape of the model {quoted(model)} is not known.{near} For any other model give its folder, or its "
        "config.json."
    )


def _without_step_times(given: ModelName) -> str | None:
    """Say why a model that people ask for by its name has no step times here; None where it is not one of those."""
    table = _names()["without_step_times"]
    reasons = {compact(str(name)): group for group in table.values() for name in group["names"]}
    found = next((reasons[key] for key in map(compact, given.spellings) if key in reasons), None)
    return None if found is None else str(found["because"])


def _nearest(plain: str) -> str:
    """Return ` Did you mean …?` with known names of the same kind: those with a word of this one, and alike."""
    words, names = _words(plain), known_names()
    same = [one for one in names if words & _words(one)]
    return did_you_mean(plain, same, _SHOWN, 0.4) or did_you_mean(plain, names, _SHOWN)


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]{3,}", name))


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
