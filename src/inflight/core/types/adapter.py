"""An adapter: what changes a model's products for some of its requests, as the engine names it."""

from __future__ import annotations

from msgspec import Struct

MAX_NAME_CHARS = 256  # characters
DEFAULT_RANK, MAX_RANK = 16, 256


class Adapter(Struct, frozen=True):
    """name: by which requests ask for it. path: where its files are. number: of this name and these files; another one
    that takes the name later has another, so that nothing that was computed with the first is found by the second."""

    name: str
    path: str
    number: int = 0
