"""Describe a model on disk, and what it needs and yields on this machine, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from inflight.execution.backends.protocol import Quantization
from inflight.execution.checkpoints.packaged.catalogue import is_dequantized
from inflight.execution.roofline import Machine, decode_ceiling
from inflight.execution.sizes import kv_bytes_per_token, weight_bytes
from inflight.models.arithmetic import active_parameters, parameters
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import model_in
from inflight.models.gguf.gguf_model import is_gguf, part_paths
from inflight.models.known import read_model
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec
from inflight.models.weight_format import described

CONTEXT = 1024  # tokens of each sequence in the figures of speed
BATCHES = (1, 8)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """refusal: why it does not run here; None where it does. file_bytes: of its weights on disk. weight_bytes: as held
    in memory. tokens_per_s: at best, for each of `BATCHES` sequences that decode together; empty where it does not
    run, or continues no texts."""

    name: str
    family: str
    format: str
    parameters: int
    active_parameters: int
    max_model_len: int
    file_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    tokens_per_s: dict[int, float]
    refusal: str | None


def model_card(
    path: Path, name: str, measured: Callable[[], Machine] | None, quantization: Quantization = "none"
) -> ModelCard:
    """Describe a folder or a .gguf file.

    Args:
        path: Of the model.
        name: As the user typed it.
        measured: Measures this machine, called only when the model is known to run; None: no speeds are wanted.
        quantization: As an engine would be given it.

    Raises:
        ModelError: It is no model, or nothing of it is understood.
    """
    file = path if is_gguf(path) else model_in(path)
    refusal: str | None = None
    try:
        spec = read_folder(file or path, to_run=True)
    except ModelError as error:
        refusal, spec = str(error), read_model(str(file or path))
    held = replace(spec, weight_format=None) if is_dequantized(name) else spec
    speeds = {} if refusal is not None or measured is None else _speeds(held, measured(), quantization)
    return ModelCard(
        name=name,
        family=spec.family,
        format=_format(spec, file is not None),
        parameters=parameters(spec),
        active_parameters=active_parameters(spec),
        max_model_len=spec.default_model_len,
        file_bytes=sum(one.stat().st_size for one in _weight_files(path, file)),
        weight_bytes=weight_bytes(held, "bfloat16", quantization),
        kv_bytes_per_token=kv_bytes_per_token(spec, "bfloat16"),
        tokens_per_s=speeds,
        refusal=refusal,
    )


def _speeds(spec: ModelSpec, machine: Machine, quantization: Quantization) -> dict[int, float]:
    if spec.head is None:
        return {}
    context = min(CONTEXT, spec.default_model_len)
    ceilings = {batch: decode_ceiling(spec, machine, batch, context, quantization) for batch in BATCHES}
    return {batch: batch / ceiling.seconds for batch, ceiling in ceilings.items()}


def _format(spec: ModelSpec, is_one_file: bool) -> str:
    held = spec.checkpoint_dtype or "plain" if spec.weight_format is None else described(spec.weight_format)
    return f"gguf, {held.removeprefix('gguf: ')}" if is_one_file else held


def _weight_files(path: Path, file: Path | None) -> list[Path]:
    if file is not None:
        return [one for one in part_paths(file) if one.is_file()]
    return sorted(path.glob("*.safetensors"))
