"""Bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from inflight.core.types.sampling import MAX_NAME_CHARS
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.types import Name

LONGEST_PATH = 4096

Required = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class LoadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """lora_path: within the folder of --lora-dir, absolute or from there on."""

    lora_name: Required
    lora_path: Annotated[str, Meta(min_length=1, max_length=LONGEST_PATH)]
    base_model_name: Name | None = None


class UnloadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    lora_name: Required


LOAD_ADAPTER = BodyDecoder(LoadAdapterBody)
UNLOAD_ADAPTER = BodyDecoder(UnloadAdapterBody)
