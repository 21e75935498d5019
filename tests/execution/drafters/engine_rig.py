"""A model with a drafter inside of its steps, under the real scheduler, and an account of what was accepted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.speculation.speculation import Allotment, ExecutorDrafter
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Capacity, StepResult
from inflight.core.types.request import Request
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.drafters.draft_kv import DraftKV
from inflight.execution.drafters.draft_model import DraftModel
from inflight.execution.drafters.draft_model_source import draft_kv_shape
from inflight.execution.drafters.step_drafting import StepDrafter
from inflight.execution.kv.kv_groups import kv_groups
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.testing.eager_speculation import EagerSpeculation

BLOCK, ROWS, LENGTH = 16, 8, 160
Said = dict[tuple[str, int], list[Any]]  # by request and sample; how a request ended under sample -1


class Breaks:
    """A drafter's decoder that computes so many passes."""

    def __init__(self, inner: Any, passes: int) -> None:
        self._inner, self._left = inner, passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, batch: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("no more")
        self._inner.forward(batch)


class Sometimes(EagerSpeculation):
    """Gives each decode so many drafts, which the executor makes, or fewer, or none."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(ExecutorDrafter("tried", most))
        self._chance = random.Random(seed)

    def allot(self, *given: Any) -> list[Allotment]:
        found = (one._replace(num_drafts=self._chance.randint(0, one.num_drafts)) for one in super().allot(*given))
        return [one for one in found if one.num_drafts]


class Account:
    """An executor that notes what came of drafts. drafted, accepted: of all chunks that were to have any. stopped:
    chunks whose drafts were not all right. lacking: drafts that were not made."""

    def __init__(self, inner: ModelRunner) -> None:
        self._inner = inner
        self.drafted = self.accepted = self.stopped = self.lacking = 0
        self.results: list[StepResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, plan: BatchPlan) -> Pending:
        return _Counted(self, plan, self._inner.submit(plan))


@dataclass
class _Counted:
    executor: Account
    plan: BatchPlan
    flight: Pending

    def result(self) -> StepResult:
        result = self.flight.result()
        self.executor.results.append(result)
        tokens = {one.sequence_id: len(one.token_ids) for one in result.sampled}
        for chunk in self.plan.chunks:
            if chunk.num_drafts and result.error is None:
                self.executor.drafted += chunk.num_drafts
                self.executor.lacking += chunk.num_drafts * (chunk.sequence_id in result.undrafted)
                self.executor.accepted += tokens[chunk.sequence_id] - 1
                self.executor.stopped += tokens[chunk.sequence_id] <= chunk.num_drafts
        return result


class Rig:
    """model, draft: folders. isa: or a backend that is open. max_tokens: of a pass, of either."""

    def __init__(
        self,
        model: Path,
        draft: Path,
        isa: str | Backend,
        dtype: Any = "float32",
        max_tokens: int = 1024,
        blocks: int = 96,
        host_blocks: int = 0,
        logit_rows: int = 3,
    ) -> None:
        self.spec, self.draft_spec = read_folder(model, to_run=True), read_folder(draft, to_run=True)
        self.backend = backend = open_backend(dtype, 1 if isa == "torch" else 2, isa) if isinstance(isa, str) else isa
        groups = kv_groups(self.spec, BLOCK, LENGTH)
        self.capacity = Capacity(
            blocks, BLOCK, ROWS, LENGTH, self.spec.vocab_size, host_blocks=host_blocks, windows=groups.windows
        )
        self.decoders = [
            Model(spec, load_weights(spec, Checkpoint(folder), backend, LENGTH), backend, max_tokens, logit_rows)
            for spec, folder in ((self.spec, model), (self.draft_spec, draft))
        ]
        self._shape = kv_shape(self.spec, BLOCK, groups=groups)

    def drafter(self) -> StepDrafter:
        kv = DraftKV(self.backend, draft_kv_shape(self.draft_spec, self._shape), self.capacity)
        return DraftModel(self.decoders[1], self.backend, kv)

    def runner(self, drafter: StepDrafter | None) -> ModelRunner:
        cache = self.backend.kv_cache(self._shape, self.capacity.num_blocks + 1, self.capacity.host_blocks)
        return ModelRunner(self.decoders[0], self.backend, cache, self.capacity, drafter=drafter)

    def run(
        self, requests: Sequence[Request], max_drafts: int = 0, seed: int = 0, depth: int = 1, **scheduling: Any
    ) -> tuple[Said, Account]:
        """Return each sample's output, token by token with log-probabilities, and how it ended; and the account."""
        account = Account(self.runner(self.drafter() if max_drafts else None))
        return self.run_on(account, requests, max_drafts, seed, depth, **scheduling), account

    def run_on(
        self,
        executor: Account,
        requests: Sequence[Request],
        max_drafts: int,
        seed: int = 0,
        depth: int = 1,
        **scheduling: Any,
    ) -> Said:
        self.scheduler = Scheduler(
            SchedulerConfig(
                self.capacity,
                Chunked(64),
                Fcfs(),
                end_token_ids=frozenset({361}),
                speculation=Sometimes(max_drafts, seed) if max_drafts else None,
                watermark=0.0,
                **scheduling,
            )
        )
        loop = EngineLoop(self.scheduler, executor, MonotonicClock(), depth=depth)
        for one in requests:
            loop.add(one)
        said: Said = {}
        for event in loop.run():
            if isinstance(event, TokensEvent):
                logprobs = event.logprobs or (None,) * len(event.token_ids)
                of = said.setdefault((event.request_id, event.sample_index), [])
                of += zip(event.token_ids, logprobs, strict=True)
            elif isinstance(event, FinishedEvent):
                said[(event.request_id, -1)] = list(event.finishes)
        return said
