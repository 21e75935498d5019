"""Small passes captured as graphs, one for each of a few sizes, and replayed: wrappers around what computes them.

A wrapper decides when a graph is made, when it takes a pass's place, and what happens where none can be made. It calls
a decoder as a runner does; passes are filled up to a size by `CapturablePass`, and a device captures by `Graphs`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from inflight.execution.backends.torch.buckets import Bucket, Buckets

log = logging.getLogger(__name__)


class CapturablePass(Protocol):
    """bucket: of the graph that there can be for this pass, which is filled up to its size; None where there can be
    none.

    adapters: 0 where no row has one; else a number for what is launched for those that are in memory, which rises when
    one comes that changes more than all before it. What a lower number launches is never asked for again.

    Of two passes of one bucket and the same adapters, operations launch the same work at the same addresses: their
    tensors of the pass lie in memory that stays. Gathering all rows reads nothing on the host. A replay does not update
    how many of an activation's rows are written: gathering reads rows by their places alone."""

    @property
    def bucket(self) -> Bucket | None: ...

    @property
    def adapters(self) -> int: ...


class Logits(Protocol):
    """The backend's activation. rows: how many of it are written."""

    rows: int


class Passes(Protocol):
    """The wrapped passes: layers, and logits behind them."""

    max_tokens: int
    max_logit_rows: int

    def forward(self, batch: Any) -> None: ...

    def logits(self, batch: Any, places: Sequence[int]) -> Any: ...


class CapturedPassDecoder(Passes, Protocol):
    """The same, as a runner asks for it."""

    @property
    def weight_slices(self) -> Any: ...

    def pooled(self, batch: Any, texts: Sequence[range]) -> Any: ...


class Graph(Protocol):
    def replay(self) -> None:
        """Launch all captured work, behind the device's earlier work."""


class Graphs(Protocol):
    """How a device captures. All graphs share one pool of memory: they run one after the other."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Capture the device work of `run` without computing it. Raises RuntimeError where the device cannot capture
        it, or has no memory left for it."""


class _Key(NamedTuple):
    """The key of a graph: the properties that its passes share, as `CapturablePass` has them."""

    bucket: Bucket
    adapters: int


class CapturedPasses:
    """Passes that are replayed where they have a bucket's size: layers, and the logits of all rows. Those with adapters
    have graphs of their own, so that others do not compute for what they have not.

    The first pass of a bucket is computed operation by operation, which compiles and loads what it needs; then it is
    captured. After a graph that could not be made none of its kind is tried, and after one of single tokens none at
    all: a sentence says so, and those there are go on.
    """

    def __init__(self, decoder: Passes, graphs: Graphs, buckets: Buckets, draws_ends: bool = False) -> None:
        """buckets: sizes to which passes are padded. draws_ends: only the last logits of chunks of several tokens are
        asked for, so that a graph has none of theirs."""
        self.max_tokens, self.max_logit_rows = decoder.max_tokens, decoder.max_logit_rows
        self._passes, self._graphs, self._buckets, self._draws_ends = decoder, graphs, buckets, draws_ends
        self._captured: dict[_Key, Graph] = {}
        self._logits: Logits | None = None  # where graphs leave logits: the decoder's one activation for them
        self._has_logits = False  # of all rows of the pass, computed and not returned yet
        self.failure: str | None = None  # of the first that could not be made
        self._given_up: set[bool] = set()  # kinds of which none is tried any more, by whether chunks are single tokens

    @property
    def captured(self) -> tuple[Bucket, ...]:
        """Return the buckets that have a graph, with adapters or without."""
        return tuple(sorted({key.bucket for key in self._captured}))

    def capture_ahead(
        self,
        run: Callable[[Sequence[int]], None],
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Capture the largest bucket first, in whose memory the smaller ones find theirs, until so many seconds are
        over; others are captured when they first come, as all with adapters are: there are none yet. run: a pass of
        padding in chunks of so many tokens."""
        started = clock()
        for chunks in self._buckets.padding():
            if clock() - started >= seconds:
                break
            bucket = self._buckets.of_lengths(chunks)
            if bucket is not None and bucket.one_each not in self._given_up:
                run(chunks)

    def forward(self, batch: CapturablePass) -> None:
        bucket = batch.bucket
        self._has_logits = False
        if bucket is None:
            self._passes.forward(batch)
        elif graph := self._captured.get(key := _Key(bucket, batch.adapters)):
            graph.replay()
            self._has_logits = self._holds_logits(bucket)
        else:
            self._compute(batch, bucket)
            if bucket.one_each not in self._given_up:
                self._capture(batch, key)

    def logits(self, batch: CapturablePass, places: Sequence[int]) -> Any:
        """Return a graph's logits once, and before any others of this pass, without a copy: the caller may overwrite
        them. They are all rows', of which the first len(places) are asked for, in order. Other logits are computed from
        the last layer's output that the graph left."""
        has_logits, self._has_logits = self._has_logits, False
        if has_logits and self._logits is not None and all(place == row for row, place in enumerate(places)):
            self._logits.rows = len(places)
            return self._logits
        return self._passes.logits(batch, places)

    def _holds_logits(self, bucket: Bucket) -> bool:
        """Return whether a graph computes all tokens' logits: if they fit, and more than chunks' ends are wanted."""
        return bucket.tokens <= self.max_logit_rows and (bucket.one_each or not self._draws_ends)

    def _compute(self, batch: CapturablePass, bucket: Bucket) -> None:
        self._passes.forward(batch)
        if self._holds_logits(bucket):
            self._logits = self._passes.logits(batch, range(bucket.tokens))
            self._has_logits = True

    def _capture(self, batch: CapturablePass, key: _Key) -> None:
        """Capture a graph. Graphs of earlier sets of adapters are released behind it, when none of them is in flight
        any more: a capture waits for the device."""
        try:
            self._captured[key] = self._graphs.capture(lambda: self._compute(batch, key.bucket))
        except RuntimeError as error:
            has_rows = bool(self._buckets.rows)
            self._given_up |= {False} if has_rows and not key.bucket.one_each else {False, True}
            failure = (
                f"a pass of {key.bucket.tokens} tokens could not be captured as a graph ({error}): such passes of "
                "sizes that have none are launched operation by operation from now on, which takes longer where tokens "
                "are few; --enforce-eager captures nothing from the start"
            )
            self.failure = self.failure or failure
            log.warning("%s", failure)
            return
        for void in [one for one in self._captured if 0 < one.adapters < key.adapters]:
            del self._captured[void]


class CapturedDecoder(CapturedPasses):
    """A decoder around another, as a runner asks for it."""

    def __init__(self, decoder: CapturedPassDecoder, graphs: Graphs, buckets: Buckets) -> None:
        super().__init__(decoder, graphs, buckets)
        self._decoder = decoder

    @property
    def weight_slices(self) -> Any:
        """Return the decoder's `weight_slices`."""
        return self._decoder.weight_slices

    @property
    def uncaptured(self) -> CapturedPassDecoder:
        """Return the decoder itself, for a pass whose graph is not kept."""
        return self._decoder

    def pooled(self, batch: CapturablePass, texts: Sequence[range]) -> Any:
        return self._decoder.pooled(batch, texts)
