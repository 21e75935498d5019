"""Build an executor: load weights, allocate states and the KV cache in the memory they leave, and compute a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from inflight.build.adapters import AdapterPlan, adapter_bytes, adapter_names, matrices_of
from inflight.build.length_probe import make_probe
from inflight.build.limits import Limits
from inflight.build.ranks import min_memory, with_workers
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.plan import Capacity
from inflight.execution.adapters import AdapterMatrices
from inflight.execution.backends.protocol import Backend, Device, KVCache, KVShape, LayerState, StateCache
from inflight.execution.computing import ComputedModel
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_rows import GrammarRows
from inflight.execution.graphs import CAPTURE_SECONDS, warm_up
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.block_transfers import TierTransfers
from inflight.execution.kv.offload.staging import PEER_STATES, STAGING_BLOCKS, STAGING_STATES, HostStaging
from inflight.execution.largest_step import LargestStep, largest_step_bytes
from inflight.execution.memory import (
    GIB,
    GPU_SHARE,
    KVSize,
    MachineMemory,
    StateSize,
    kv_size,
    state_size,
    states_of,
    swap_blocks,
)
from inflight.execution.model import Model
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder
from inflight.execution.runner import ModelRunner, copy_seconds
from inflight.execution.step_progress import LayerProgress, StepActivity, layer_ends
from inflight.frontend.adapter_names import AdapterNames
from inflight.models.sequence_memory import host_checkpoints

if TYPE_CHECKING:
    from inflight.execution.drafters.step_drafting import DrafterSource, LoadedDrafter
    from inflight.execution.length_probe.step_probe import StepProbe
    from inflight.execution.parallel.executor import ParallelExecutor
    from inflight.execution.parallel.workers import Workers


MemoryFinder = Callable[[], KVMemory | HostStaging | None]
ConnectorsOpener = Callable[[MemoryFinder, StepActivity], Iterable[TierTransfers]]


def no_connectors(find_memory: MemoryFinder, steps: StepActivity) -> Iterable[TierTransfers]:
    return ()


class ExecutorSettings(Struct, frozen=True):
    """Settings of a model's executor on this machine.

    Attributes:
        shape: of a KV block on one device.
        windows: of its KV groups.
        adapters: slots and rank of adapters.
        drafter: what drafts inside of steps.
        grammars: that outputs may follow.
        open_connectors: called with (function that returns the memory of blocks and checkpoints, activity of steps);
            returns the transfers beside steps. The memory is the host's by which a device with memory of its own is
            read and written, and None where there is none.
        peer_bytes: of host memory by which a device with memory of its own transfers blocks with peers; 0: it does not.
    """

    engine: EngineSettings
    scheduling: SchedulingSettings
    limits: Limits
    shape: KVShape
    windows: tuple[int, ...]
    adapters: AdapterPlan
    drafter: DrafterSource | None = None
    grammars: CompiledGrammars | None = None
    open_connectors: ConnectorsOpener = no_connectors
    peer_bytes: int = 0


class StartSeconds(Struct, frozen=True):
    """Seconds of an engine's start: weights from their files to the device, the largest step (on a GPU, with what it
    compiles), memory for keys, values and states, and captures before the first request; before these the header of the
    model's files, beside them the tokenizer and chat template (`text`)."""

    weights: float
    profile: float
    memory: float
    warm_up: float
    header: float = 0.0
    text: float = 0.0

    def parts(self) -> tuple[tuple[str, float], ...]:
        """Return names and seconds, in order."""
        return (
            ("header of the model", self.header),
            ("tokenizer (in parallel)", self.text),
            ("weights", self.weights),
            ("largest step", self.profile),
            ("memory for keys and values", self.memory),
            ("warm-up", self.warm_up),
        )


class Built(Struct, frozen=True):
    """An executor that has computed its first step, the sizes of its memory with their reasons, and the seconds."""

    executor: ModelRunner | ParallelExecutor
    kv: KVSize
    states: StateSize
    adapters: AdapterNames
    seconds: StartSeconds


def build_executor(
    computed: ComputedModel,
    backend: Device,
    settings: ExecutorSettings,
    workers: Workers | None,
    progress: Progress | None,
) -> Built:
    """Build an executor and compute its first step.

    Args:
        workers: the processes of the other ranks, which do the same.
        progress: called with (done, total) while weights are packed.

    Raises:
        SettingsError: the device computes no step.
        ModelError: the weights cannot be loaded.
    """
    began = time.perf_counter()
    model = _load(computed, backend, settings, progress)
    loaded = time.perf_counter()
    step = model.step_bytes(workers)
    profiled = time.perf_counter()
    memory = replace(
        min_memory(backend, workers, settings.engine.tensor_parallel_size),
        share=settings.engine.gpu_memory_utilization or GPU_SHARE,
        step=step,
    )
    states = model.state_size(memory)
    of_adapters = adapter_bytes(settings.adapters, model.adapters, backend)
    left = replace(memory, available=memory.available - states.nbytes - of_adapters)
    if left.held is not None:
        left = replace(left, held=left.held + of_adapters)
    size = model.kv_size(left)
    runner = model.runner(size, states)
    executor = with_workers(runner, workers)
    allocated = time.perf_counter()
    try:
        warm_up(model.decoder, executor)
        runner.capture_drafts_ahead(CAPTURE_SECONDS)
    except RuntimeError as error:
        raise _no_step(error) from error
    ready = time.perf_counter()
    seconds = StartSeconds(loaded - began, profiled - loaded, allocated - profiled, ready - allocated)
    return Built(executor, size, states, adapter_names(settings.adapters, model.adapters), seconds)


def _no_step(error: RuntimeError) -> SettingsError:
    return SettingsError(f"The device computes no step. {str(error).rstrip('.')}.")


def _load(
    computed: ComputedModel, backend: Device, settings: ExecutorSettings, progress: Progress | None
) -> _LoadedModel:
    limits = settings.limits
    decoder = computed.decoder(backend, limits.max_model_len, limits.pass_tokens, limits.logit_rows, progress)
    drafter = None
    if settings.drafter is not None:
        assert isinstance(backend, Backend)
        drafter = settings.drafter.load(backend, decoder, progress)
    adapters = matrices_of(settings.adapters, decoder, computed.spec)
    probe = make_probe(computed, decoder, limits.max_rows, settings.scheduling)
    return _LoadedModel(computed, backend, settings, decoder, drafter, adapters, probe)


class _LoadedModel(Struct, frozen=True):
    """A model whose weights are on the device, with its drafter, the matrices that adapters change, and its probe."""

    computed: ComputedModel
    backend: Device
    settings: ExecutorSettings
    decoder: PassDecoder
    drafter: LoadedDrafter | None
    adapters: AdapterMatrices | None
    probe: StepProbe | None

    @property
    def state_kinds(self) -> Sequence[LayerState | None]:
        return states_of(self.computed.spec)

    @property
    def drafter_bytes(self) -> int:
        """Bytes of the drafter's part of a block."""
        return 0 if self.drafter is None else self.drafter.bytes_per_block

    def step_bytes(self, workers: Workers | None) -> int:
        """Return the bytes of its own memory that a device needs for the largest step. Raises SettingsError."""
        if self.backend.own_memory() is None:
            return 0
        assert isinstance(self.backend, Backend)
        limits = self.settings.limits
        step = LargestStep(
            self.decoder.max_tokens,
            limits.max_rows,
            limits.max_model_len,
            self.computed.spec.vocab_size,
            self.settings.shape,
            self.settings.windows,
            self.state_kinds,
        )
        try:
            return largest_step_bytes(self.decoder, self.backend, step, None if workers is None else workers.alone())
        except RuntimeError as error:
            raise _no_step(error) from error

    @property
    def bytes_per_state(self) -> int:
        """Return the bytes of one copy of a sequence's recurrent state; 0: the model has none."""
        if not self.state_kinds:
            return 0
        assert isinstance(self.backend, Backend)
        return self.backend.bytes_per_state(self.state_kinds)

    @property
    def host_checkpoints(self) -> int:
        """Return the slots of checkpoints that `--kv-cache-host` pays for: where the device has memory of its own,
        none."""
        host = self.settings.engine.kv_cache_host
        if host is None or self.backend.asynchronous_copies:
            return 0
        return host_checkpoints(host * GIB, self.bytes_per_state)

    def state_size(self, memory: MachineMemory) -> StateSize:
        settings = self.settings
        asked = settings.engine.state_memory
        return state_size(self.bytes_per_state, settings.limits.max_rows, asked, memory, self.host_checkpoints)

    def kv_size(self, memory: MachineMemory) -> KVSize:
        settings, limits = self.settings, self.settings.limits
        return kv_size(
            settings.shape,
            self.backend.bytes_per_block(settings.shape),
            max_num_seqs=limits.max_rows,
            max_model_len=limits.max_model_len,
            kv_memory_gib=settings.engine.kv_memory,
            num_blocks=settings.engine.num_blocks,
            memory=memory,
            windows=settings.windows,
            longest_chunk=limits.longest_chunk(settings.scheduling),
            drafter_bytes=self.drafter_bytes,
        )

    def runner(self, size: KVSize, states: StateSize) -> ModelRunner:
        """Allocate keys, values and states of these sizes, open the connectors and make the runner."""
        backend, settings = self.backend, self.settings
        kv_cache, capacity = self._kv_cache(size, states)
        steps, cache = StepActivity(), None
        if self.state_kinds:
            assert isinstance(backend, Backend)
            rows = settings.limits.max_rows + 1  # one more, for padding
            cache = backend.state_cache(self.state_kinds, rows, capacity.state_snapshots)
        transfers = tuple(settings.open_connectors(partial(self._memory, kv_cache, cache, capacity), steps))
        drafting = None if self.drafter is None else self.drafter.start(capacity)
        grammars = None
        if settings.grammars is not None:
            # A GPU takes a step with drafts for several decodes' time where it has no graph of it.
            reports_forced = not settings.limits.on_gpu or self.computed.graphs.tokens > 0
            grammars = GrammarRows(settings.grammars, capacity.vocab_size, reports_forced)
        layers = self._layer_progress(transfers)
        return ModelRunner(
            self.decoder,
            backend,
            kv_cache,
            capacity,
            cache,
            drafting,
            grammars,
            self.adapters,
            transfers,
            layers,
            steps,
            self.probe,
        )

    def _memory(
        self, kv_cache: KVCache, states: StateCache | None, capacity: Capacity
    ) -> KVMemory | HostStaging | None:
        """Return the memory of blocks and checkpoints; None: it cannot be read and written."""
        if self._num_staging(capacity.num_blocks):
            return self._host_staging(kv_cache, states, capacity)
        blocks = self.backend.block_memory(kv_cache)
        snapshots = None if states is None else states.snapshot_memory
        if blocks is None or (states is not None and snapshots is None):
            return None
        return self._kv_memory(blocks, snapshots, capacity)

    def _kv_memory(self, blocks: memoryview, snapshots: memoryview | None, capacity: Capacity) -> KVMemory:
        return KVMemory(
            BlockMemory(blocks, self.backend.bytes_per_block(self.settings.shape)),
            capacity.state_group,
            None if snapshots is None else BlockMemory(snapshots, self.bytes_per_state),
        )

    def _num_staging(self, num_blocks: int) -> int:
        """Return the host blocks by which blocks of a device with memory of its own go to a folder and to peers.

        num_blocks: Of the device."""
        if not self.backend.asynchronous_copies:
            return 0
        of_folder = STAGING_BLOCKS if self.settings.engine.kv_cache_dir else 0
        of_peers = self.settings.peer_bytes // self.backend.bytes_per_block(self.settings.shape)
        return of_folder + min(of_peers, num_blocks)

    def _host_staging(self, kv_cache: KVCache, states: StateCache | None, capacity: Capacity) -> HostStaging | None:
        num_states = STAGING_STATES if self.settings.engine.kv_cache_dir else 0
        num_states += PEER_STATES if self.settings.peer_bytes else 0
        host = self.backend.host_memory(kv_cache, states, num_states)
        if host is None:
            return None
        block_bytes = self.backend.bytes_per_block(self.settings.shape)
        memory = self._kv_memory(host.blocks[capacity.host_blocks * block_bytes :], host.snapshots, capacity)
        first_block = capacity.num_blocks + 1 + capacity.host_blocks
        copy_blocks = partial(self.backend.copy_blocks, kv_cache)
        return HostStaging(memory, first_block, capacity.state_snapshots, copy_blocks, host.copy_snapshots)

    def _kv_cache(self, size: KVSize, states: StateSize) -> tuple[KVCache, Capacity]:
        backend, settings, limits, spec = self.backend, self.settings, self.settings.limits, self.computed.spec
        own = backend.bytes_per_block(settings.shape)
        whole = own + self.drafter_bytes
        host_blocks = swap_blocks(settings.scheduling.swap_space, whole)
        if settings.engine.kv_cache_host is not None:
            of_states = self.host_checkpoints * self.bytes_per_state / GIB
            host_blocks += swap_blocks(settings.engine.kv_cache_host - of_states, whole, option="--kv-cache-host")
        allocated = size.num_blocks + 1  # one more, for padding
        kv_cache = backend.kv_cache(settings.shape, allocated, host_blocks + self._num_staging(size.num_blocks))
        capacity = Capacity(
            num_blocks=size.num_blocks,
            block_size=settings.engine.block_size,
            max_rows=limits.max_rows,
            max_model_len=limits.max_model_len,
            vocab_size=spec.vocab_size,
            host_blocks=host_blocks,
            copy_seconds=copy_seconds(backend, kv_cache, host_blocks) * whole / own if host_blocks else 0.0,
            asynchronous_transfers=host_blocks > 0 and backend.asynchronous_copies,
            embedding_size=0 if spec.pooler is None else spec.pooler.outputs(spec.hidden_size),
            windows=settings.windows,
            state_snapshots=states.snapshots,
            state_blocks=-(-self.bytes_per_state // whole),
            generates=spec.head is not None,
            encoder_only=limits.is_bidirectional,
            adapter_slots=settings.adapters.num_slots,
        )
        return kv_cache, capacity

    def _layer_progress(self, transfers: Sequence[TierTransfers]) -> LayerProgress | None:
        """Return the layers' progress for peers, where blocks are sent and the host knows when a layer is computed."""
        if not transfers:
            return None
        from inflight.execution.kv.transfer.peer_transfers import PeerTransfers

        reader = next((one for one in transfers if isinstance(one, PeerTransfers) and one.is_producer), None)
        if reader is None or self.backend.depth > 1 or not isinstance(self.decoder, Model):
            return None
        ends = layer_ends(self.settings.shape, self.backend.bytes_per_block)
        if not ends:
            return None
        layers = LayerProgress(ends, reader)
        self.decoder.watch_layers(layers.layer_done)
        return layers
