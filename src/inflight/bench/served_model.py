"""What a server says of the model that it serves: its name, its length, its vocabulary.

Knows where ours, vLLM, SGLang and llama.cpp tell it; what nobody tells stays None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inflight.bench.client_types import BenchError, Target
from inflight.bench.probe_client import ProbeClient
from inflight.bench.reach import reachable


@dataclass(frozen=True, slots=True)
class ServedModel:
    """max_model_len: tokens of prompt and answer together. vocab_size: token ids."""

    model: str
    max_model_len: int | None = None
    vocab_size: int | None = None


def look(target: Target, model: str | None) -> ServedModel:
    """model None: the first that the server names. Raises BenchError where nobody can be asked for it."""
    names = reachable(target)
    if model is None and not names:
        raise BenchError(f"{target.url} names no model; give its name with --model.")
    if model is not None and names and model not in names:
        raise BenchError(f"{target.url} does not serve the model {model!r}; it serves {', '.join(names)}.")
    chosen = model or names[0]
    row = _described(target, chosen) if names else {}
    meta = row.get("meta")  # llama.cpp's
    length = _number(row.get("max_model_len")) or _number(row.get("context_length"))
    return ServedModel(chosen, length, _number(meta.get("n_vocab")) if isinstance(meta, dict) else None)


def _described(target: Target, model: str) -> dict[str, Any]:
    body = ProbeClient(target).get("/v1/models").body
    rows = body.get("data") if isinstance(body, dict) else None
    return next((row for row in rows or () if isinstance(row, dict) and row.get("id") == model), {})


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
