"""The body of /v1/models/load and /v1/models/unload."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from inflight.core.types.sampling import MAX_NAME_CHARS
from inflight.server.bodies.decoding import BodyDecoder


class ModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """model: any of its names."""

    model: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


MODEL = BodyDecoder(ModelBody)
