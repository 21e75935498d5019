"""Engines to measure: weights and KV memory are made once, and every setting gets a fresh engine around them.

With `simulated_loop` the same scheduler runs on virtual time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from copy import copy
from pathlib import Path

from benchmarks.drive import Observer, Watched
from benchmarks.shapes import QWEN25_05B, TINY, write_config
from inflight.build import BUILT_IN
from inflight.config.assembly import budget, scheduler_for
from inflight.config.engine import LOGIT_ROWS, EngineSettings, resolve_rows
from inflight.config.scheduling import SchedulingSettings
from inflight.config.threads import resolve_threads
from inflight.core.types.executor import Executor
from inflight.core.types.plan import Capacity
from inflight.core.types.suspension import Suspender
from inflight.engine.clock import Clock, MonotonicClock, VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.protocols import GrammarGate
from inflight.execution.adapters import AdapterMatrices
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Quantization
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_rows import GrammarRows
from inflight.execution.memory import kv_shape, swap_blocks
from inflight.execution.model import Model as ForwardPasses
from inflight.execution.packer import WeightSlice
from inflight.execution.runner import ModelRunner, copy_seconds
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.steps import StepModel

_SHAPES: dict[str, dict[str, object]] = {"qwen": QWEN25_05B, "tiny": TINY}
_NAMES = {"qwen": "Qwen2.5-0.5B's shape in bf16", "tiny": "a tiny random model", "built-in": "the built-in model"}


class Model:
    """A loaded model, its kernels and its KV memory."""

    def __init__(
        self,
        name: str = "qwen",
        num_blocks: int = 4096,
        max_model_len: int = 4096,
        quantization: Quantization = "none",
        threads: int | None = None,
    ):
        """name: qwen or tiny (random weights), or built-in. num_blocks, max_model_len: the most that any engine asks
        for, blocks of swap space included; of a model with fewer positions those are taken. quantization: of its
        matrices. threads: None: one per usable core."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(write_config(Path(folder), _SHAPES[name])) if name in _SHAPES else BUILT_IN
            self.config = read_folder(path, to_run=True)
            self._backend = open_backend("bfloat16", int(resolve_threads(EngineSettings(threads=threads)).value))
            source = DummyWeights(self._backend.dtype) if name in _SHAPES else Checkpoint(path)
            self.max_model_len = min(max_model_len, self.config.default_model_len)
            self._weights = load_weights(self.config, source, self._backend, self.max_model_len, None, quantization)
        self.name = _NAMES[name] if quantization == "none" else f"{_NAMES[name]}, held in {quantization}"
        self._shape = kv_shape(self.config, EngineSettings().block_size)
        self._kv_cache = self._backend.kv_cache(self._shape, num_blocks + 1)  # one more, for padding
        self._num_blocks = num_blocks

    def beside(self) -> Model:
        """The same weights with KV memory of their own, for engines that run in turns."""
        other = copy(self)
        other._kv_cache = self._backend.kv_cache(self._shape, self._num_blocks + 1)
        return other

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def weight_slices(self) -> Mapping[str, WeightSlice]:
        """Return where its matrices are, by name."""
        return self._weights.weight_slices

    def copy_seconds(self) -> float:
        """Return the seconds of copying one block, either way."""
        return copy_seconds(self._backend, self._kv_cache, self._num_blocks // 2)

    def loop(
        self,
        settings: EngineSettings,
        scheduling: SchedulingSettings | None = None,
        observer: Observer | None = None,
        pass_tokens: int | None = None,
        compiled: CompiledGrammars | None = None,
        adapter_slots: int = 0,
    ) -> EngineLoop:
        """An engine that has served nothing yet. `settings` must say max_model_len and num_blocks.

        pass_tokens: of one forward pass, where a strategy's steps are larger and the budget is not theirs. compiled:
        grammars that its outputs may follow. adapter_slots: 0: it takes no adapters.
        """
        scheduling = scheduling or SchedulingSettings()
        executor = self.executor(settings, scheduling, pass_tokens, compiled, adapter_slots)
        return assemble(executor, MonotonicClock(), settings, scheduling, observer, compiled)

    def executor(
        self,
        settings: EngineSettings,
        scheduling: SchedulingSettings,
        pass_tokens: int | None = None,
        compiled: CompiledGrammars | None = None,
        adapter_slots: int = 0,
    ) -> ModelRunner:
        """Its device alone; arguments as for `loop`."""
        assert settings.max_model_len is not None and settings.num_blocks is not None
        host_blocks = swap_blocks(scheduling.swap_space, self._backend.bytes_per_block(self._shape))
        assert settings.num_blocks + host_blocks <= self._num_blocks, "the KV cache was made for fewer blocks"
        capacity = Capacity(
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            max_rows=int(resolve_rows(settings).value),
            max_model_len=settings.max_model_len,
            vocab_size=self.vocab_size,
            host_blocks=host_blocks,
            copy_seconds=copy_seconds(self._backend, self._kv_cache, host_blocks) if host_blocks else 0.0,
            adapter_slots=adapter_slots,
        )
        tokens = pass_tokens or budget(settings, scheduling)
        decoder = ForwardPasses(self.config, self._weights, self._backend, tokens, LOGIT_ROWS)
        # Steps are compared that compute a token a row; what a grammar forces would put several into some.
        grammars = None if compiled is None else GrammarRows(compiled, capacity.vocab_size, reports_forced=False)
        adapters = AdapterMatrices(self.config, self.weight_slices) if adapter_slots else None
        return ModelRunner(decoder, self._backend, self._kv_cache, capacity, grammars=grammars, adapters=adapters)


def simulated_loop(
    capacity: Capacity,
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    model: StepModel,
    observer: Observer | None = None,
) -> EngineLoop:
    """The same scheduler on a simulated device, in virtual time."""
    return assemble(SimulatedExecutor(capacity, model), VirtualClock(), settings, scheduling, observer)


def assemble(
    executor: Executor,
    clock: Clock,
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    observer: Observer | None = None,
    grammars: GrammarGate | None = None,
    suspender: Suspender | None = None,
) -> EngineLoop:
    """A scheduler and its loop around an executor."""
    scheduler = scheduler_for(executor.capacity, settings, scheduling)
    watched = executor if observer is None else Watched(executor, observer)
    return EngineLoop(scheduler, watched, clock, grammars=grammars, suspender=suspender)
