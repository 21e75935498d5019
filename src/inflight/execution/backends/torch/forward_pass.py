"""A pass on a device: it launches programs, and fetches results.

Results go to pinned memory of the host, and are read when the pass's own event has passed: nothing else here waits for
the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array, PassResult, ScoredBatch
from inflight.execution.backends.torch.device_batch import DeviceBatch, PassStart
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.launcher import Launcher, TensorCall
from inflight.execution.backends.torch.memory import DeviceActivation, DeviceKVCache
from inflight.execution.backends.torch.sampling_tensors import Drawn, Scores
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.results import DrawnRows, PassOutcome, PooledRows, ScoredRows


class TorchPass:
    def __init__(
        self,
        launcher: Launcher,
        start: PassStart,
        kv_cache: DeviceKVCache,
        batch: InputBatch,
        chunks: Sequence[Chunk],
        upload: Upload,
        act: torch.dtype,
        invariant: bool,
    ):
        """invariant: the bits of a row may not depend on the rows beside it."""
        mirror: DeviceBatch = batch.mirror
        self._launcher, self._batch, self._mirror, self._layout = launcher, batch, mirror, start.layout
        self.token_ids, self.positions = start.tensors.token_ids, start.tensors.positions
        self.num_tokens, self.bucket = len(start.layout.positions), start.bucket
        self.draws_all = False  # graphs have logits behind the layers by themselves
        self.adapters = 0 if start.adapted is None else mirror.adapters.shape
        self._outcome = DeviceOutcome(chunks, mirror.tokens.device)
        self._on = DevicePass(
            act=act,
            tensors=start.tensors,
            cached=kv_cache.layer,
            token_types=self._token_types,
            send=lambda values: upload.send([values])[0],
            states=None if mirror.states is None else mirror.states.layer,
            state_tensors=start.states,
            adapters=mirror.adapters.of,
            adapter_rows=start.adapted,
            invariant=invariant,
        )
        launcher.begin(start.appended, mirror.tokens[:, batch.ahead :], start.tensors)

    def run(self, program: Sequence[TensorCall], places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        self._on.begin_program(places, texts)
        counts = {"tokens": self.num_tokens, "places": len(places), "texts": len(texts)}
        for call in program:
            self._launcher.launch(call.operation, self._on, call.tensors(counts))

    def sample(
        self, logits: DeviceActivation, places: Sequence[int], allowed: Sequence[Array | None] | None = None
    ) -> None:
        of, slots, positions = self._placed(places)
        draws = self._mirror.draws(self._batch, slots, positions, allowed)
        drawn = self._launcher.sample(logits.tensor[: len(places)], draws)
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
        scores = self._launcher.score(logits.tensor[: len(places)], token_ids, top)
        on_host = fetched_scores(scores)
        assert on_host is not None
        self._outcome.scored.append(ScoredRows(of, positions, wanted, fetched(token_ids), on_host))

    def pool(self, hidden: DeviceActivation, places: Sequence[int]) -> None:
        of, slots, _ = self._placed(places)
        vectors = hidden.tensor[: len(places)].to(torch.float32, copy=True)
        self._outcome.pooled.append(PooledRows(of, self._batch.pooling(slots), fetched(vectors)))

    def read(self, hidden: DeviceActivation, places: Sequence[int]) -> None:
        at = self._on.send(np.array(places, np.int32))
        self._outcome.states = fetched(hidden.tensor.index_select(0, at).to(torch.float32))

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


class DeviceOutcome(PassOutcome):
    """Filled while a pass is launched."""

    def __init__(self, chunks: Sequence[Chunk], device: torch.device) -> None:
        super().__init__(chunks)
        self._device = device
        self._event: torch.cuda.Event | None = None

    def finish(self) -> PassOutcome:
        """Note that everything is launched."""
        if self._device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self._device))
            return self
        return super().finish()

    def result(self) -> PassResult:
        if self._event is not None:
            self._event.synchronize()
            self.finished = time.perf_counter()
        return super().result()


def fetched(values: Tensor) -> Array:
    """Return host memory of the values, to be read when an event behind this call has passed."""
    if values.device.type != "cpu":
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        values = host.copy_(values, non_blocking=True)
    found: Array = values.numpy()
    return found


def fetched_scores(scores: Scores | Drawn) -> ScoredBatch | None:
    """Return log-probabilities likewise; None where no row wants any."""
    if scores.logprobs is None:
        return None
    logprobs = fetched(scores.logprobs)
    if scores.top_ids is None or scores.top_logprobs is None:
        return ScoredBatch(logprobs, np.zeros((len(logprobs), 0), np.int32), np.zeros((len(logprobs), 0), np.float32))
    return ScoredBatch(logprobs, fetched(scores.top_ids), fetched(scores.top_logprobs))
