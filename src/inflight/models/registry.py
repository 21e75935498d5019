"""Make a `ModelSpec` of a config.json: find its family, and read what all families have in common.

In common are the fields around the layers: tables, head, lengths, end tokens, the checkpoint's format. An architecture
that no family's file names is refused by its name, and so is a field that would make the family's arithmetic another
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inflight.json_file import JsonFileError, read_json_object, shown
from inflight.models import families
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.family import Family
from inflight.models.fields import Fields
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at, model_name
from inflight.models.pooler import BASE, CLASSIFIER, GENERATES
from inflight.models.runnable import refuse_what_does_not_run
from inflight.models.sentence_transformers import with_modules
from inflight.models.spec import Head, LayerSpec, ModelSpec, Norm
from inflight.models.weight_format import weight_format

_ELSE = "; --backend transformers runs others that keep nothing but keys and values, slowly."
# Of a model that sees images too, what stands around its text part and concerns it.
_OUTER = ("tie_word_embeddings", "quantization_config", "eos_token_id", "bos_token_id", "dtype", "torch_dtype")


def families_naming(text: str) -> list[Family]:
    """Return the families of every file in `families` that contains `text`, so that reading one model imports one file;
    of all files where it is empty."""
    files = sorted(path for folder in families.__path__ for path in Path(folder).glob("[a-z]*.py"))
    modules = [f"{families.__name__}.{path.stem}" for path in files if text in path.read_text(encoding="utf-8")]
    return [one for name in modules for one in vars(import_module(name)).values() if isinstance(one, Family)]


def family_at(place: str) -> Family:
    """Import a plugin's family, named as `package.module:NAME`. Raises ModelError."""
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever their code raises
        raise ModelError(
            f"--family {place} cannot be loaded ({type(error).__name__}: {error}); write package.module:NAME, with the "
            "package on PYTHONPATH."
        ) from None
    if not isinstance(found, Family):
        raise ModelError(f"--family {place} is a {type(found).__name__}; name a Family that the module makes.")
    return found


def read_spec(
    data: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    to_run: bool = False,
    family: Family | None = None,
) -> ModelSpec:
    """Describe the model of a config.json's content (of its text part, where it sees images too).

    generation: the content of generation_config.json, whose end tokens go first. name: what messages call the model.
    to_run: also refuse what this engine cannot run. family: which it is of, whatever it is called. Raises ModelError
    for an architecture or a field that is not understood, and for sizes that are missing or do not fit together.
    """
    family, text = _family(data, to_run, family)
    fields = _fields(family, text)
    ends = Fields(generation or {}, {}).token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    begins = fields.token_ids("bos_token_id") or Fields(generation or {}, {}).token_ids("bos_token_id")
    layers = _layers(family, fields)
    pooler = family.pooler(str(_named(data)), fields)
    positions = None if family.positions is None else family.positions(fields)
    length = fields.size("max_position_embeddings") if positions is None else positions.count
    spec = ModelSpec(
        name=name,
        family=family.name,
        runs=family.runs and (text is data or _named(data) in family.wrappers),
        vocab_size=fields.size("vocab_size"),
        hidden_size=fields.size("hidden_size"),
        layers=layers,
        norm=Norm(family.norm, fields.small(family.eps, 1e-6), family.norm_offset),
        head=_head(family, fields) if pooler is None else None,
        pooler=pooler,
        positions=positions,
        token_types=0 if family.token_types is None else family.token_types(fields),
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
        roots=family.roots,
        embedding_scale=1.0 if family.embedding_scale is None else family.embedding_scale(fields),
        residual_scale=1.0 if family.residual_scale is None else family.residual_scale(fields),
        names=tuple(family.names.items()),
        max_position_embeddings=length,
        end_token_ids=ends,
        bos_token_id=begins[0] if begins else None,
        checkpoint_dtype=fields.dtype,
        weight_format=weight_format(text),
    )
    if to_run:
        refuse_what_does_not_run(spec)
    return spec


def _fields(family: Family, text: Mapping[str, Any]) -> Fields:
    usual = {usual: text[own] for usual, own in family.aliases.items() if own in text}
    fields = Fields({**text, **usual}, family.defaults)
    fields.refuse_changes(family.name, family.understands)
    return fields


def _layers(family: Family, fields: Fields) -> tuple[LayerSpec, ...]:
    found = family.layers(fields)
    layers = [found] * fields.layers if isinstance(found, LayerSpec) else list(found)
    if family.runs:  # the others rotate in more ways than there are settings for
        layers = [_rotated(family, fields, layer, index) for index, layer in enumerate(layers)]
    return _shared(layers)


def read_folder(folder: str | Path | GGUFModel, *, to_run: bool = False, family: Family | None = None) -> ModelSpec:
    """Read a folder's config.json and, if there is one, generation_config.json; or a GGUF file. Raises ModelError as
    `read_spec` does."""
    folder = Path(folder) if isinstance(folder, str) else folder
    gguf = gguf_at(folder)
    if gguf is not None:
        from inflight.models.gguf.config import config_of, in_terms_of_file, refuse_more_weights

        config = config_of(gguf)
        try:
            spec = read_spec(config, name=model_name(gguf.path), to_run=to_run, family=family)
        except ModelError as error:
            raise in_terms_of_file(error, gguf) from None
        if to_run:
            refuse_more_weights(gguf, parameters(spec))
        return spec
    assert isinstance(folder, Path)
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} is no model folder: it has no config.json ({_contents(folder)}). "
            "Give a folder in Hugging Face format, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct."
        )
    spec = read_spec(read_json(path), read_generation(folder), name=folder.name, to_run=to_run, family=family)
    return with_modules(spec, folder)


def read_generation(folder: Path | GGUFModel) -> Mapping[str, Any] | None:
    """How the model's authors would have it sampled; None where they do not say. Raises ModelError."""
    gguf = gguf_at(folder)
    if gguf is not None:
        from inflight.models.gguf.config import generation_of

        return generation_of(gguf)
    assert isinstance(folder, Path)
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model's file. Raises ModelError where it is unreadable, broken, or another type."""
    try:
        return read_json_object(path)
    except (JsonFileError, FileNotFoundError) as error:
        raise ModelError(str(error)) from None


def _head(family: Family, fields: Fields) -> Head:
    """Build the head of a model that continues texts."""
    return Head(
        tied=fields.flag("tie_word_embeddings"),
        scale=1.0 if family.logit_scale is None else family.logit_scale(fields),
        bias=family.head_bias is not None and family.head_bias(fields),
        soft_cap=0.0 if family.logit_cap is None else family.logit_cap(fields),
    )


def _contents(folder: Path) -> str:
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "it is empty"
    return "it holds " + ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _family(data: Mapping[str, Any], to_run: bool, given: Family | None) -> tuple[Family, Mapping[str, Any]]:
    """Return the family and the fields to read: those of the text part of a model that has other parts."""
    named = _named(data)
    nested = data.get("text_config")
    if isinstance(nested, Mapping) and "hidden_size" not in data and given is None:
        text = {**{key: data[key] for key in _OUTER if key in data}, **nested}
        if data.get("tie_word_embeddings") is not None:  # what stands around the text part goes first
            text["tie_word_embeddings"] = data["tie_word_embeddings"]
        inner = _known(_named(nested) or named)
        if inner is not None and (not to_run or (inner.runs and named in inner.wrappers)):
            return inner, text
    known = given or _known(named)
    if known is not None and (known.runs or not to_run):
        return known, data
    all_there_are = sorted(families_naming(""), key=lambda one: not one.runs)
    names = (next(iter(one.architectures)) for one in all_there_are if one.runs or not to_run)
    supported = "Supported are the families of " + ", ".join(dict.fromkeys(names))
    if not named:
        raise ModelError(f"config.json names neither architectures nor model_type: it is no model's. {supported}.")
    if not isinstance(named, str) or len(named) > 200:
        raise ModelError(f"config.json names {shown(named)} as its architecture, which is no name. {supported}.")
    experts = "num_experts" in data or "num_local_experts" in data or "moe" in named.lower()
    kind = "a mixture of experts, which is" if experts else "an architecture that is"
    raise ModelError(f"{named} is {kind} not supported. {supported}{_ELSE if to_run else '.'}")


def _known(name: object) -> Family | None:
    """Return the family of an architecture or a model type, or of an architecture's text part; None if unknown."""
    if not isinstance(name, str) or not name:
        return None
    stems = (name, *(name.removesuffix(end) + GENERATES for end in (CLASSIFIER, BASE) if name.endswith(end)))
    families_of = (one for stem in stems for one in families_naming(stem))
    names = ((one, (*one.all_architectures, *one.model_types, *one.wrappers)) for one in families_of)
    return next((one for one, known in names if name in known), None)


def _named(data: Mapping[str, Any]) -> Any:
    """Return the architecture; where none is given, the model type."""
    architectures = data.get("architectures") or []
    if not isinstance(architectures, list):
        raise ModelError(f"architectures in config.json must be a list of names, not {shown(architectures)}.")
    return (architectures[0] if architectures else None) or data.get("model_type")


def _shared(layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Equal layers as one object, so that who asks each layer the same question may ask once."""
    first: dict[LayerSpec, LayerSpec] = {}
    return tuple(first.setdefault(layer, layer) for layer in layers)


def _rotated(family: Family, fields: Fields, layer: LayerSpec, index: int) -> LayerSpec:
    mixer = layer.mixer.with_rope(lambda mixer: family.rope(fields, mixer, index))
    return layer if mixer is layer.mixer else replace(layer, mixer=mixer)
