"""A pass on a device: its operations by kind, and its results.

Passes each kind its tensors of the pass, of the batch and of memory; the operations compute (`operations`). Nothing
here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.torch.device_batch import DeviceBatch, PassStart
from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.pass_adapters import AdaptedProducts
from inflight.execution.backends.torch.pass_attention import AttentionOperations
from inflight.execution.backends.torch.pass_products import ProductOperations
from inflight.execution.backends.torch.pass_rows import RowOperations
from inflight.execution.backends.torch.pass_states import RecurrentOperations
from inflight.execution.backends.torch.results import DeviceOutcome, fetched, fetched_scores
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.results import DrawnRows, PassOutcome, PooledRows, ScoredRows
from inflight.execution.program import Program, run_by_name


class TorchPass:
    def __init__(
        self,
        operations: DeviceOperations,
        start: PassStart,
        kv_cache: DeviceKVCache,
        batch: InputBatch,
        chunks: Sequence[Chunk],
        upload: Upload,
    ):
        mirror: DeviceBatch = batch.mirror
        self._operations, self._batch, self._mirror, self._layout = operations, batch, mirror, start.layout
        tables, adapted = mirror.adapters, start.adapted
        self.token_ids, self.positions = start.tensors.token_ids, start.tensors.positions
        self.num_tokens, self.bucket = len(start.layout.positions), start.bucket
        self.adapters = 0 if adapted is None else tables.shape
        self._outcome = DeviceOutcome(chunks, mirror.tokens.device)
        operations.begin(start.appended, mirror.tokens[:, batch.ahead :], start.tensors)
        # Any: they take activations of this backend, where the protocol says that anybody's may come.
        rows: Any = RowOperations(operations, start.tensors, self.num_tokens, upload, self._token_types)
        self.embed, self.gather, self.clear, self.to_act = rows.embed, rows.gather, rows.clear, rows.to_act
        self.add_positions, self.add_token_types, self.mean = rows.add_positions, rows.add_token_types, rows.mean
        self.rms_norm, self.layer_norm, self.add = rows.rms_norm, rows.layer_norm, rows.add
        self.layer_norm_sum = rows.layer_norm_sum
        self.scale, self.soft_cap, self.activate = rows.scale, rows.soft_cap, rows.activate
        self.add_gated, self.gate = rows.add_gated, rows.gate
        plain = ProductOperations(operations)
        products: Any = plain if adapted is None else AdaptedProducts(operations, tables, adapted)
        self.linear, self.linear_residual = products.linear, products.linear_residual
        self.linear_act = products.linear_act
        self.gate_up, self.experts, self.by_head = products.gate_up, products.experts, products.by_head
        cached: Any = AttentionOperations(operations, start.tensors, kv_cache)
        self.rope_and_write_kv, self.rope_and_write_latent = cached.rope_and_write_kv, cached.rope_and_write_latent
        self.attention = cached.attention
        recurrent: Any = RecurrentOperations(operations, start.tensors, mirror.states, start.states)
        self.convolve, self.convolve_gated = recurrent.convolve, recurrent.convolve_gated
        self.delta_rule = recurrent.delta_rule

    def run(self, program: Program, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        run_by_name(self, program, places, texts)

    def sample(
        self, logits: DeviceActivation, places: Sequence[int], allowed: Sequence[Array | None] | None = None
    ) -> None:
        of, slots, positions = self._placed(places)
        draws = self._mirror.draws(self._batch, slots, positions, allowed)
        drawn = self._operations.sample(logits.tensor[: len(places)], draws)
        self._mirror.keep(draws, drawn.token_ids)
        was_banned = fetched(drawn.was_banned)
        self._outcome.drawn.append(
            DrawnRows(
                of,
                positions,
                self._batch.want_logprobs[slots],  # as they are now: another may have the slot later
                self._batch.integers[2, slots],
                fetched(drawn.token_ids),
                fetched(drawn.is_sound),
                lambda row: bool(was_banned[row]),
                fetched_scores(drawn),
            )
        )

    def score(self, logits: DeviceActivation, places: Sequence[int]) -> None:
        of, slots, positions = self._placed(places)
        token_ids, wanted = self._mirror.following(slots, positions), self._batch.prompt_logprobs[slots]
        top = min(int(wanted.max(initial=0)), logits.width)
        scores = self._operations.score(logits.tensor[: len(places)], token_ids, top)
        on_host = fetched_scores(scores)
        assert on_host is not None
        self._outcome.scored.append(ScoredRows(of, positions, wanted, fetched(token_ids), on_host))

    def pool(self, hidden: DeviceActivation, places: Sequence[int]) -> None:
        of, slots, _ = self._placed(places)
        vectors = hidden.tensor[: len(places)].to(torch.float32, copy=True)
        self._outcome.pooled.append(PooledRows(of, self._batch.pooling(slots), fetched(vectors)))

    def finish(self) -> PassOutcome:
        return self._outcome.finish()

    def _token_types(self) -> Array:
        second = self._batch.second_text_at[self._layout.rows]
        return (self._layout.positions >= second[self._layout.chunk_of]).astype(np.int32)

    def _placed(self, places: Sequence[int]) -> tuple[Array, Array, Array]:
        """Return the chunks, the request slots and the positions of these tokens of the pass."""
        at = np.fromiter(places, np.int32, len(places))
        of = self._layout.chunk_of[at]
        return of, self._layout.rows[of], self._layout.positions[at]
