"""Whether a model can be run over a paged cache, found by trying.

Two sequences are computed in one go by the modules alone, and side by side in pieces over a cache; their logits must
agree. They do not where a layer keeps state outside of attention, counts positions by itself, or looks back in a way
that it does not pass to the attention interface.
"""

from __future__ import annotations

from typing import Any

import torch

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.protocol import KVShape
from inflight.execution.transformers.attention import NAME
from inflight.execution.transformers.backend import TransformersBackend, TransformersPass
from inflight.execution.transformers.decoder import TransformersDecoder
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec

_PIECES = ((7, 19), (8, 1), (5, 3))  # tokens of both sequences that are computed together
_LENGTHS = tuple(map(sum, zip(*_PIECES, strict=True)))
_BLOCK, _BLOCKS = 16, -(-max(_LENGTHS) // 16)  # of each sequence
_MAX_ERROR = 0.05  # of the logits' norm: bf16 errs by a tenth of it


def try_out(modules: Any, spec: ModelSpec, backend: TransformersBackend) -> None:
    """Raise ModelError for a model whose logits over a paged cache differ, or cannot be computed."""
    sequences = [
        [(31 * row + 7 * place) % spec.vocab_size for place in range(length)] for row, length in enumerate(_LENGTHS)
    ]
    try:
        with torch.inference_mode():
            found = _in_pieces(modules, spec, backend, sequences)
            modules.set_attn_implementation("eager")
            expected = [modules(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]
    except Exception as error:  # whatever the model's own code raises
        raise _refused(spec, f"it ends with {type(error).__name__}: {str(error)[:200]}") from None
    finally:
        modules.set_attn_implementation(NAME)
    for got, right in zip(found, expected, strict=True):
        error_share = float((got - right).norm() / right.norm())
        if not error_share < _MAX_ERROR:
            raise _refused(
                spec,
                f"its logits over a paged cache are {100 * error_share:.3g} % off those without one, so that some of "
                "its layers keep state elsewhere",
            )


def _in_pieces(
    modules: Any, spec: ModelSpec, backend: TransformersBackend, sequences: list[list[int]]
) -> list[torch.Tensor]:
    """Logits of all tokens of each sequence."""
    layer = spec.layers[0].mixer
    shape = KVShape.uniform(len(spec.layers), _BLOCK, layer.kv_heads, layer.head_dim)  # type: ignore[union-attr]  # attention
    state = backend.input_batch(Capacity(2 * _BLOCKS, _BLOCK, 2, max(_LENGTHS) + 1, spec.vocab_size), 0)
    cache = backend.kv_cache(shape, 2 * _BLOCKS)
    decoder = TransformersDecoder(modules, sum(_LENGTHS), sum(_LENGTHS))
    new = [NewRequest(row, tuple(ids), len(ids), SamplingParams(), 0, 0) for row, ids in enumerate(sequences)]
    tables = [tuple(range(row, 2 * _BLOCKS, 2)) for row in (0, 1)]
    found: list[list[torch.Tensor]] = [[], []]
    computed = [0, 0]
    for counts in _PIECES:
        chunks = [Chunk(row, row, computed[row], count, tables[row], 0) for row, count in enumerate(counts)]
        state.update(chunks, new)
        batch = backend.prepare(state, cache, chunks)
        new, tables = [], [(), ()]
        assert isinstance(batch, TransformersPass)
        decoder.forward(batch)
        logits = torch.from_numpy(decoder.logits(batch, range(sum(counts))).array.copy())
        for row, part in enumerate(torch.split(logits, list(counts))):
            found[row].append(part)
            computed[row] += len(part)
    return [torch.cat(parts) for parts in found]


def _refused(spec: ModelSpec, why: str) -> ModelError:
    return ModelError(
        f"--backend transformers cannot run {spec.family}: {why}; take a model of a family that runs without it."
    )
