"""Choose the quantization of a GGUF repository by the memory of this machine's device, from the heads of its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from inflight.execution.checkpoints.hub_download import Repository, download_head
from inflight.execution.checkpoints.pull_progress import PullStep, Report, megabytes
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import is_plain, quantization_of

if TYPE_CHECKING:
    from inflight.execution.memory import MachineMemory

TOKENS = 8192  # of keys and values that must have room beside the weights
_USABLE = 0.8  # share of the machine's memory; the rest is for the system and the process itself
_HEAD_BYTES = 1 << 24  # holds the metadata with the largest vocabularies, and names of tensors
_USUAL_GROWTH, _USUAL_KV_BYTES = 1.4, 1 << 30  # where the head is not understood: of packed weights, of TOKENS

Model = tuple[str, ...]  # a GGUF model's files, the first of which opens it


def fitting(repository: Repository, models: Sequence[Model], report: Report) -> Model:
    """Return the largest quantized model that leaves room for `TOKENS`, and report why.

    Raises:
        ModelError: None does.
    """
    from inflight.execution.memory import gib

    memory = default_memory()
    usable = memory.total * _USABLE
    quantized = [one for one in models if not is_plain(quantization_of(one[0]))] or list(models)
    by_size = sorted(quantized, key=repository.size_of, reverse=True)
    room = f"room for {TOKENS:,} tokens in {gib(usable)}, {_USABLE:.0%} of the memory of {memory.limited_by}"
    for model in by_size:
        if repository.size_of(model) > usable:
            continue
        if _needed(repository, model, report) <= usable:
            tag, size = quantization_of(model[0], models), megabytes(repository.size_of(model))
            others = ", ".join(quantization_of(one[0], models) for one in models if one != model)
            why = f"{repository.model}: {tag}, {size}: the largest quantized one that leaves {room}. "
            report(PullStep("chosen", repository.model, f"{why}Others: {repository.id}:NAME with {others}."))
            return model
    least = by_size[-1]
    tag, size = quantization_of(least[0], models), megabytes(repository.size_of(least))
    raise ModelError(
        f"{repository.id} has no GGUF file that leaves {room}; the smallest is {tag}, {size}. Take a smaller model, or "
        f"{repository.id}:{tag} to have it all the same."
    )


def default_memory() -> MachineMemory:
    """Return the memory of the device that engines take unless one is set: a GPU's, else this machine's."""
    from inflight.execution import memory
    from inflight.execution.backends.torch.device import choose, gpu_memory

    if (name := choose("auto").name) == "cpu":
        return memory.machine_memory()
    own = gpu_memory(name)
    return memory.MachineMemory(own.total, own.free, "the GPU", own.held)


def _needed(repository: Repository, model: Model, report: Report) -> float:
    """Return the bytes of memory that a model and `TOKENS` take."""
    name = model[0]
    estimate = repository.size_of(model) * _USUAL_GROWTH + _USUAL_KV_BYTES
    if len(model) > 1 or repository.files[name].sha256 is None:
        return estimate
    head = download_head(repository, name, _HEAD_BYTES, report)
    with TemporaryDirectory(dir=head.parent) as folder:
        whole = Path(folder) / Path(name).name
        with head.open("rb") as read:
            whole.write_bytes(read.read(2 * _HEAD_BYTES))
        os.truncate(whole, repository.files[name].size)  # its tensors are zeros, which are not read
        return _measured(whole) or estimate


def _measured(file: Path) -> float | None:
    from inflight.execution.sizes import kv_bytes_per_token, weight_bytes
    from inflight.models.registry import read_folder

    try:
        spec = read_folder(file)
    except ModelError:
        return None
    tokens = min(TOKENS, spec.default_model_len)
    return weight_bytes(spec, "bfloat16") + tokens * kv_bytes_per_token(spec, "bfloat16")
