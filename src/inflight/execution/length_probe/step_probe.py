"""Probing inside a runner's steps: which positions' states are read, and whose outputs they are.

A state is read where a prompt ends, and again whenever `REFRESH` more tokens are there. The plan says how long outputs
became. Numbers of sequences are unique; states of those that never end are dropped once there are too many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from inflight.core.types.length_distribution import PredictedLength
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.execution.backends.protocol import Activation
from inflight.execution.length_probe.probe import Asked, LengthProbe, Read
from inflight.execution.length_probe.probe_file import ProbeFileError, load_probes, salted
from inflight.execution.length_probe.probe_saver import ProbeSaver

log = logging.getLogger(__name__)

REFRESH = 128  # output tokens from one read to the next: before that the first says more
MAX_READS = 16  # of one output: of longer ones the later states are not learnt from
MAX_ADAPTERS = 16  # that have a probe of their own; the one that was used last comes last
_DIGITS = 4  # of a probability, in results and records


class _Row(NamedTuple):
    prompt_tokens: int
    max_tokens: int
    has_grammar: bool
    adapter: str


AskedOutput = tuple[int, Asked, str]  # a sequence whose state is read, with the name of its adapter
T = TypeVar("T")


class StepProbe:
    """Reads states and answers with predictions.

    Attributes:
        seconds: That it has taken so far, reads, predictions and learning together.
    """

    def __init__(self, hidden: Activation, hidden_size: int, max_rows: int, salt: str, path: Path | None = None):
        """Reset, or begin with what the file holds.

        Args:
            hidden: float32[T, E], residual stream half-way through the layers, of the pass that was computed last.
            hidden_size: E.
            max_rows: Of the batch.
            salt: Name of the model.
            path: File that it begins with and is saved to, now and then and at the end; None: it is forgotten.
        """
        self.seconds = 0.0
        self._has_failed = False
        self._hidden, self._hidden_size, self._salt = hidden, hidden_size, salt
        self._probes: dict[str, LengthProbe] = {}
        self._rows: dict[int, _Row] = {}
        self._due: dict[int, int] = {}  # output tokens at which the next state of a sequence is read
        self._adapters: dict[int, str] = {}  # by slot
        self._reads: dict[int, tuple[str, list[Read]]] = {}  # by sequence: the adapter, and what was read
        self._max_sequences = 8 * max_rows
        self._saver = None if path is None else ProbeSaver(path)
        if path is not None:
            try:
                self._probes = load_probes(path, hidden_size, salt)
            except (ProbeFileError, OSError) as error:
                log.warning("%s", error)

    def begin(self, plan: BatchPlan) -> None:
        """Take in a plan's rows, and learn from the outputs that have ended."""
        self._ask(lambda: self._begin(plan), None)

    def read(self, forward: Any, chunks: Sequence[Chunk]) -> list[AskedOutput]:
        """Read the states of a computed pass that are due; return the outputs that they are of."""
        none: list[AskedOutput] = []
        return self._ask(lambda: self._read(forward, chunks), none)

    def predict(self, states: Any, asked: Sequence[AskedOutput]) -> tuple[PredictedLength, ...]:
        """Return predictions of the outputs whose states float32[S, E] were read."""
        return self._ask(lambda: self._predict(states, asked), ())

    def close(self) -> None:
        """Save what was learnt."""
        if self._saver is not None:
            self._saver.close(self._probes)

    def _begin(self, plan: BatchPlan) -> None:
        if not (plan.adapter_loads or plan.new_requests or plan.ended):
            return
        began = time.perf_counter()
        for load in plan.adapter_loads:
            self._adapters[load.slot] = load.adapter.name
        for one in plan.new_requests:
            adapter = self._adapters.get(one.adapter_slot, "")
            most = one.params.max_tokens or 0
            self._rows[one.row] = _Row(one.prompt_length, most, one.grammar is not None, adapter)
        for output in plan.ended:
            self._due.pop(output.sequence_id, None)
            adapter, reads = self._reads.pop(output.sequence_id, ("", []))
            if reads and output.complete is not None:
                self._probe(adapter).learn(reads, output.tokens, output.complete)
                if self._saver is not None:
                    self._saver.save_if_due(self._probes)
        self.seconds += time.perf_counter() - began

    def _read(self, forward: Any, chunks: Sequence[Chunk]) -> list[AskedOutput]:
        places, asked = [], []
        ends = accumulate(chunk.length for chunk in chunks)
        for chunk, end in zip(chunks, ends, strict=True):
            if not chunk.sample or (row := self._rows.get(chunk.row)) is None:
                continue
            drafts = len(chunk.draft_token_ids)
            so_far = chunk.start + chunk.length - drafts - row.prompt_tokens
            if so_far < self._due.get(chunk.sequence_id, 0):
                continue
            self._due[chunk.sequence_id] = so_far - so_far % REFRESH + REFRESH
            places.append(end - 1 - drafts)
            asked.append(
                (chunk.sequence_id, Asked(row.prompt_tokens, so_far, row.max_tokens, row.has_grammar), row.adapter)
            )
        if places:
            forward.read(self._hidden, places)
        return asked

    def _predict(self, states: Any, asked: Sequence[AskedOutput]) -> tuple[PredictedLength, ...]:
        began = time.perf_counter()
        found: list[PredictedLength] = []
        for adapter in dict.fromkeys(adapter for _, _, adapter in asked):
            at = [index for index, one in enumerate(asked) if one[2] == adapter]
            probe = self._probe(adapter)
            firsts = [self._first(asked[index][0]) for index in at]
            reads = probe.read(states[at], [asked[index][1] for index in at], firsts)
            kept = [(asked[index][0], one) for index, one in zip(at, reads, strict=True) if one is not None]
            self._keep(adapter, kept)
            if probe.is_ready:
                shown = probe.predictions([one for _, one in kept])
                for (sequence, one), probabilities in zip(kept, shown, strict=True):
                    rounded = tuple(round(value, _DIGITS) for value in probabilities.tolist())
                    if any(rounded):
                        found.append(PredictedLength(sequence, one.so_far, rounded))
        self.seconds += time.perf_counter() - began
        return tuple(found)

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Return an answer; once a question has failed, the other answer."""
        if self._has_failed:
            return otherwise
        try:
            return question()
        except Exception as fault:  # whatever it is, the model computes without
            self._has_failed = True
            log.error("the probe of output lengths failed, and predicts nothing from now on", exc_info=fault)
            return otherwise

    def _keep(self, adapter: str, reads: Iterable[tuple[int, Read]]) -> None:
        for sequence, one in reads:
            known = self._reads.setdefault(sequence, (adapter, []))[1]
            if len(known) < MAX_READS:
                known.append(one)
        while len(self._reads) > self._max_sequences:
            dropped = next(iter(self._reads))
            del self._reads[dropped]
            self._due.pop(dropped, None)

    def _first(self, sequence: int) -> Read | None:
        """Return what was read at the end of a sequence's prompt."""
        reads = self._reads.get(sequence, ("", []))[1]
        return reads[0] if reads and not reads[0].so_far else None

    def _probe(self, adapter: str) -> LengthProbe:
        probe = self._probes.pop(adapter, None) or LengthProbe(self._hidden_size, salted(self._salt, adapter))
        self._probes[adapter] = probe
        while len(self._probes) > MAX_ADAPTERS:
            del self._probes[next(iter(self._probes))]
        return probe
