"""The settings that lie beside a tokenizer: `tokenizer_config.json`.

Knows how to read that file and how it spells special tokens. Does not know the vocabulary (see `tokenizer`) nor what a
chat template does (see `chat`).
"""

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
    """Read `tokenizer_config.json`; a model folder without one has no settings, which is no error. Of a GGUF file,
    what its metadata say of the same.

    Raises:
        TokenizerError: the file cannot be read, is not JSON, or is not a JSON object (see `json_file`).
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
    """The special tokens the settings name, e.g. `{"eos_token": "</s>"}`, under the names chat templates use."""
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
    """A token is written as a string or as an object with its `content`; flags such as `add_bos_token` are neither."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
