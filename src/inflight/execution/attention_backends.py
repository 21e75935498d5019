"""Which libraries of attention there are beside our kernels, what each asks of a model and of settings, and the
sentences where it is not so.

Knows specs and names; how a library is called, `backends.torch.attention_libraries` knows. Nothing is imported here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from inflight.execution.backends.protocol import DType
from inflight.models.spec import Attention, LatentAttention, ModelSpec

AttentionBackend = Literal["auto", "flash-attn", "flashinfer"]


class AttentionRequirements(Struct, frozen=True):
    """Requirements of an attention library. module: to import. package: to install. pages: block sizes are multiples of
    so many tokens. head_dims: a description of the head sizes. passes: the passes in which it attends."""

    module: str
    package: str
    pages: int
    head_dims: str
    passes: str

    def has_head_dim(self, head_dim: int) -> bool:
        if self.module == "flash_attn":
            return head_dim % 8 == 0 and head_dim <= 256
        return head_dim in (64, 128, 256)


LIBRARIES: dict[AttentionBackend, AttentionRequirements] = {
    "flash-attn": AttentionRequirements(
        "flash_attn", "flash-attn", 256, "multiples of 8 up to 256", "all passes, graphs of decodes too"
    ),
    "flashinfer": AttentionRequirements(
        "flashinfer",
        "flashinfer-python",
        16,
        "64, 128 and 256",
        "passes with prompts; those that only decode are graphs, which its plans cannot be part of, and ours",
    ),
}


class AttentionUse(Struct, frozen=True):
    """How an engine would use it."""

    block_size: int
    dtype: DType
    quantized_kv: bool
    batch_invariant: bool


def misfit(name: AttentionBackend, model: ModelSpec, use: AttentionUse) -> str | None:
    """Explain why this library cannot compute this model and what to do; None where it can."""
    library = LIBRARIES[name]
    option = f"--attention-backend {name}"
    for cause in _causes(library, model, use):
        return f"{option} {cause}, or leave the option out: our own kernels compute that."
    if importlib.util.find_spec(library.module) is None:
        return (
            f"{option} needs {library.package}, which is not installed here; pip install {library.package}, or leave "
            "the option out for our own kernels."
        )
    return None


def _causes(library: AttentionRequirements, model: ModelSpec, use: AttentionUse) -> Iterator[str]:
    if use.batch_invariant:
        yield "adds up in an order that may depend on the batch; leave --batch-invariant out"
    if use.dtype != "bfloat16":
        yield f"computes in bfloat16, and --dtype is {use.dtype}; take bfloat16"
    if use.quantized_kv:
        yield "reads keys and values as activations are, without a scale for each token; leave --kv-cache-dtype out"
    if use.block_size % library.pages:
        yield (
            f"reads blocks of a multiple of {library.pages} tokens, and --block-size is {use.block_size}; take "
            f"--block-size {library.pages}"
        )
    for layer in model.layers:
        if isinstance(layer.mixer, LatentAttention):
            yield "is not written for latent attention, whose values are part of its keys; take another model"
        if isinstance(layer.mixer, Attention):
            if layer.mixer.sinks:
                yield "is called without sinks, which this model's layers have; take another model"
            if not library.has_head_dim(layer.mixer.head_dim):
                width = layer.mixer.head_dim
                yield f"has heads of {library.head_dims}, and this model's are {width}; take another model"
