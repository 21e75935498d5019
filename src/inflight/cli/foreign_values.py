"""Make values of our options of those of other servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping


class NoEffect(ValueError):
    """A value that needs no option here; the sentence says why."""


class Refused(ValueError):
    """A value that no option here has the meaning of; the sentence says why, and what to use."""


Convert = Callable[[str], list[str]]  # a value → words behind our option. Raises NoEffect, Refused


def choice(known: Mapping[str, str | NoEffect | Refused], otherwise: NoEffect | Refused | None = None) -> Convert:
    """Return a converter of known values, each to ours or to an error. otherwise: of other values; None: they are
    kept."""

    def convert(value: str) -> list[str]:
        found = known.get(value, otherwise or value)
        if isinstance(found, ValueError):
            raise type(found)(*found.args)
        return [found]

    return convert


def words(**known: str) -> Convert:
    """Return a converter that replaces some values and keeps others; an empty replacement means the default."""
    return choice({name: ours or NoEffect(f"{name} is how it is here") for name, ours in known.items()})


def unless(reason: str, *values: str) -> Convert:
    """Return a converter for values of which some have no effect here."""
    return choice(dict.fromkeys(values, NoEffect(reason)))


def only_one(instead: str) -> Convert:
    return choice({"1": NoEffect("there is one")}, Refused(instead))


def scaled(divisor: float) -> Convert:
    def convert(value: str) -> list[str]:
        number = float(length_of(value))
        if number < 0:
            raise Refused("give a size")
        return [f"{number / divisor:.6g}"]

    return convert


def length_of(value: str) -> str:
    """Return a number in figures: vLLM writes 32k for 32,000 and 32K for 32,768. Other words are kept."""
    number, unit = value[:-1], value[-1:]
    factor = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(unit)
    try:
        return value if factor is None else str(int(float(number) * factor))
    except ValueError:
        return value


def parts(value: str) -> list[str]:
    """Return comma-separated values, or those of a JSON list."""
    return [str(one) for one in json.loads(value)] if value[:1] == "[" else value.split(",")


def speculation(value: str) -> list[str]:
    """Return our source of drafts for vLLM's JSON."""
    try:
        given = json.loads(value)
        method, model, tokens = given.get("method", "draft_model"), given.get("model"), given["num_speculative_tokens"]
    except (ValueError, AttributeError, KeyError):
        raise Refused("write --speculation suffix, heads or draft:MODEL") from None
    found = "suffix" if method in ("ngram", "suffix") else f"draft:{model}"
    if "mtp" in method or method.startswith("eagle"):
        found = "heads" if model is None else f"heads:{model}"
    return [found, "--speculation-max-tokens", str(tokens)]


def draft_kind(value: str) -> list[str]:
    if value == "none":
        return ["off"]
    if value.lower().startswith("ngram"):
        return ["suffix"]
    if value in ("draft-mtp", "NEXTN"):
        return ["heads"]
    raise Refused("write --speculation draft:MODEL or heads:FOLDER")


def lora_module(value: str) -> list[str]:
    """Return NAME=PATH of vLLM's two forms."""
    if not value.startswith("{"):
        return [value]
    try:
        given = json.loads(value)
        return [f"{given['name']}={given['path']}"]
    except (ValueError, KeyError):
        raise Refused("write --lora NAME=PATH") from None


def pooling(value: str) -> list[str]:
    given = json.loads(value) if value.startswith("{") else {}
    found = str(given.get("pooling_type") or given.get("seq_pooling_type") or "").lower()
    if not found:
        raise Refused("write --pooling cls, mean or last")
    return [found]


def log_number(value: str) -> list[str]:
    levels = ("error", "error", "warning", "info", "debug", "debug")
    return [levels[min(int(value), 5)] if value.isdigit() else value]


def _length(value: str) -> list[str]:
    if value in ("auto", "-1"):
        raise NoEffect("it is the model's own")
    return [length_of(value)]


# Values of options of others.
layers = choice({"0": "cpu"}, NoEffect("all layers are on one device, a GPU if there is one"))
_OFF, _BY_MODEL = '{"enable_thinking": false}', NoEffect("the model decides")
thinking = choice(
    {"0": _OFF, "off": _OFF, "on": '{"enable_thinking": true}', "-1": _BY_MODEL, "auto": _BY_MODEL},
    Refused("a request limits reasoning by thinking_token_budget"),
)
kv_type = choice(
    {"q8_0": "int8", **dict.fromkeys(("f16", "bf16", "f32"), NoEffect("keys and values have the type of activations"))},
    Refused("--kv-cache-dtype int8 is the smallest"),
)

# Values of options that we have, too.
_OF_FILES = NoEffect("it is read from the model's files")
_FLOAT16 = Refused("float16 is not computed; --dtype bfloat16 takes as little memory, and float32 is more exact")
_QUANTIZED = (
    *("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "gguf", "mxfp4", "fbgemm_fp8", "modelopt"),
    *("modelopt_fp4", "w8a8_int8", "w8a8_fp8"),
)
_FORMATS = ("safetensors", "hf", "gguf", "mistral", "pt", "bitsandbytes", "runai_streamer")
VALUES: dict[str, Convert] = {
    "--max-model-len": _length,
    "--max-num-batched-tokens": lambda value: [length_of(value)],
    "--dtype": choice({"half": _FLOAT16, "float16": _FLOAT16, "float": "float32"}),
    "--quantization": choice(  # bitsandbytes quantizes weights of any checkpoint as they are loaded
        {"bitsandbytes": Refused("write --quantization int4, or int8"), **dict.fromkeys(_QUANTIZED, _OF_FILES)}
    ),
    "--load-format": choice(dict.fromkeys(_FORMATS, _OF_FILES)),
    "--kv-cache-dtype": words(fp8_e4m3="fp8", fp8_e5m2="fp8", bfloat16="auto", bf16="auto", float16="auto"),
    "--attention-backend": choice(
        {name: name for name in ("auto", "flash-attn", "flashinfer")}, NoEffect("our kernels compute attention")
    ),
}
