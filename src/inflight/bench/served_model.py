"""Find a server and its model by /v1/models and /health: name, length and vocabulary as ours, vLLM, SGLang and
llama.cpp report them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from inflight.bench.answer import shown
from inflight.bench.client_types import BenchError, Target
from inflight.bench.probe_client import ProbeClient


@dataclass(frozen=True, slots=True)
class ServedModel:
    """max_model_len: tokens of prompt and answer together. vocab_size: token ids. embeds: whether it only embeds."""

    model: str
    max_model_len: int | None = None
    vocab_size: int | None = None
    embeds: bool = False


def look(target: Target, model: str | None) -> ServedModel:
    """Find a model. model None: the first that the server names. Raises BenchError where there is no server or
    model."""
    rows = offered(target)
    names = [str(row["id"]) for row in rows]
    if model is None and not names:
        raise BenchError(f"{target.url} names no model; give its name with --model.")
    if model is not None and names and model not in names:
        raise BenchError(f"{target.url} does not serve the model {model!r}; it serves {', '.join(names)}.")
    chosen = model or names[0]
    row: dict[str, Any] = next((row for row in rows if row["id"] == chosen), {})
    meta = row.get("meta")  # llama.cpp's
    length = _number(row.get("max_model_len")) or _number(row.get("context_length"))
    can = row.get("capabilities")  # ours
    embeds = isinstance(can, dict) and can.get("embeddings") is True and can.get("completions") is False
    return ServedModel(chosen, length, _number(meta.get("n_vocab")) if isinstance(meta, dict) else None, embeds)


def offered(target: Target) -> list[dict[str, Any]]:
    """Return the models that the server lists, with their `id`; empty where it lists none but is healthy.

    Raises BenchError within about `connect_timeout_s` where there is no answer, a key is needed, or the server is not
    OpenAI-compatible.
    """
    base = target.url.rstrip("/")
    try:
        is_address = base.startswith(("http://", "https://")) and bool(urlsplit(base).hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise BenchError(f"{target.url!r} is no address of a server; it looks like http://127.0.0.1:8000.")
    client = ProbeClient(replace(target, url=base), target.connect_timeout_s)
    answer = client.get("/v1/models")
    if answer.status == 404:
        health = client.get("/health")
        if health.ok:
            return []
        raise BenchError(
            f"{base} answers, but with HTTP 404 to /v1/models and {health.status} to /health: no OpenAI-compatible "
            "server is there. Give the address without /v1."
        )
    if answer.status in (401, 403):
        raise BenchError(
            f"{base} needs a key (HTTP {answer.status}: {answer.message}). Give it with --api-key, or in "
            "OPENAI_API_KEY."
        )
    if not answer.ok:
        raise BenchError(f"{base} is there but not ready: HTTP {answer.status} to /v1/models ({answer.message}).")
    rows = answer.body.get("data") if isinstance(answer.body, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
        raise BenchError(
            f"{base}/v1/models does not answer with a list of models: {shown(answer.text.encode())} An "
            "OpenAI-compatible server is needed."
        )
    return rows


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
