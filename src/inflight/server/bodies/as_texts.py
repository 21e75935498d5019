"""A body about whole texts in words that all such endpoints share: what its `as_texts` makes of it, and preprocessing
computes."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from inflight.frontend.text_tasks import Told
from inflight.server.bodies.common import CallSettings


class TextSettings(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """dimensions, normalize: of vectors. prompt_name: of the model's own prompts, which is put before each text.
    truncate: what is longer than the model takes is cut at its end."""

    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None


class TextForm(Struct, frozen=True):
    """How the answer shows what is told. base64: vectors as float32 numbers. raw: scores as the model gives them,
    whatever its usual activation. top_n: results of a ranking; documents: that it shows, where it does."""

    base64: bool = False
    raw: bool = False
    top_n: int | None = None
    documents: tuple[str, ...] = ()


PLAIN = TextForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsTexts:
    """told: of each text, or of pairs. texts: all of these, or the first ones of pairs; seconds: the others, as many,
    or where there is one first text, of any number. field, second_field: that they came in."""

    told: Told
    settings: TextSettings
    texts: list[str | list[int]]
    field: str
    seconds: list[str] | None = None
    second_field: str = ""
    form: TextForm = PLAIN
