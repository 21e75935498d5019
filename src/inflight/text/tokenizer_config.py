"""Read a tokenizer's settings from `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inflight.json_file import JsonFileError, read_json_object
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.text.errors import TokenizerError

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "tokenizer_config.json"


def read_tokenizer_config(folder: Path | GGUFModel) -> dict[str, Any]:
    """Read `tokenizer_config.json`, or the same settings of a GGUF file's metadata; empty if there is no such file.

    Raises:
        TokenizerError: The file cannot be read, is not JSON, or is not a JSON object (see `json_file`).
    """
    gguf = gguf_at(folder)
    if gguf is not None:
        from .gguf_tokenizer import read_gguf_tokenizer_config

        return read_gguf_tokenizer_config(gguf)
    assert not isinstance(folder, GGUFModel)
    path = folder / FILE_NAME
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return {}
    except JsonFileError as error:
        raise TokenizerError(str(error)) from None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return the special tokens that the settings name, e.g. `{"eos_token": "</s>"}`, by chat templates' names."""
    named: dict[str, str | list[str]] = {}
    for name, value in config.items():
        if name.endswith("_token") and (token := _content(value)) is not None:
            named[name] = token
    for name in ("additional_special_tokens", "extra_special_tokens"):
        values = config.get(name)
        if isinstance(values, list) and (tokens := [token for value in values if (token := _content(value))]):
            named[name] = tokens
    return named


def _content(value: Any) -> str | None:
    """Return the token of a setting: a string, or an object with `content`; None for flags such as `add_bos_token`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
