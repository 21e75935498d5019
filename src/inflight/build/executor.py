"""Build an executor: load weights, allocate states and the KV cache in the memory they leave, and compute a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from inflight.build.adapters import AdapterPlan, adapter_bytes, adapter_names, matrices_of
from inflight.build.limits import Limits
from inflight.build.ranks import min_memory, with_workers
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.types.plan import Capacity
from inflight.execution.adapters.adapter_matrices import AdapterMatrices
from inflight.execution.backends.protocol import Backend, Device, KVCache, KVShape, LayerState
from inflight.execution.block_transfers import PlaceTransfers
from inflight.execution.computing import ComputedModel
from inflight.execution.decoder import Decoder
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_rows import GrammarRows
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.largest_step import LargestStep, largest_step_bytes
from inflight.execution.layer_progress import LayerProgress, layer_ends
from inflight.execution.memory import GPU_SHARE, KVSize, MachineMemory, StateSize, kv_size, state_size, swap_blocks
from inflight.execution.packer import Progress
from inflight.execution.pass_decoder import PassDecoder
from inflight.execution.runner import ModelRunner, copy_seconds
from inflight.execution.states import states_of
from inflight.execution.step_activity import StepActivity
from inflight.execution.warm_up import CAPTURE_SECONDS, warm_up
from inflight.frontend.adapter_names import AdapterNames
from inflight.models.spec import ModelSpec

if TYPE_CHECKING:
    from inflight.execution.drafters.drafter_loading import DrafterSource, LoadedDrafter
    from inflight.execution.parallel.executor import ParallelExecutor
    from inflight.execution.parallel.workers import Workers


ConnectorsOpener = Callable[[BlockMemory | None, StepActivity], Iterable[PlaceTransfers]]


def no_connectors(memory: BlockMemory | None, steps: StepActivity) -> Iterable[PlaceTransfers]:
    """Transfer no blocks."""
    return ()


class ExecutorSettings(Struct, frozen=True):
    """Settings of a model's executor on this machine.

    Attributes:
        shape: of a KV block on one device.
        windows: of its KV groups.
        adapters: slots and rank of adapters.
        drafter: what drafts inside of steps.
        grammars: that outputs may follow.
        open_connectors: called with (memory of the blocks, activity of steps); returns the transfers beside steps. The
            memory is None where the blocks are not in one piece of this machine's memory.
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
            ("tokenizer beside the next", self.text),
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
    limits, began = settings.limits, time.perf_counter()
    decoder = computed.decoder(backend, limits.max_model_len, limits.pass_tokens, limits.logit_rows, progress)
    drafter = None
    if settings.drafter is not None:
        assert isinstance(backend, Backend)
        drafter = settings.drafter.load(backend, decoder, progress)
    matrices = matrices_of(settings.adapters, decoder, computed.spec)
    of_adapters = adapter_bytes(settings.adapters, matrices, backend)
    loaded = time.perf_counter()
    step = _step_bytes(decoder, backend, settings, computed.spec, workers)
    profiled = time.perf_counter()
    memory = replace(
        min_memory(backend, workers, settings.engine.tensor_parallel_size),
        share=settings.engine.gpu_memory_utilization or GPU_SHARE,
        step=step,
    )
    states = state_size(
        _bytes_per_state(backend, states_of(computed.spec)), limits.max_rows, settings.engine.state_memory, memory
    )
    left = replace(memory, available=memory.available - states.nbytes - of_adapters)
    if left.held is not None:
        left = replace(left, held=left.held + of_adapters)
    size = _kv_size(backend, settings, left, drafter)
    kv_cache, capacity = _kv_cache(backend, settings, size, states, computed.spec, drafter)
    memory_of_blocks = backend.block_memory(kv_cache)
    block_bytes = backend.bytes_per_block(settings.shape)
    steps = StepActivity()
    blocks = None if memory_of_blocks is None else BlockMemory(memory_of_blocks, block_bytes)
    transfers = tuple(settings.open_connectors(blocks, steps))
    runner = _runner(decoder, backend, settings, kv_cache, capacity, computed, drafter, matrices, transfers, steps)
    executor = with_workers(runner, workers)
    allocated = time.perf_counter()
    try:
        warm_up(decoder, executor)
        runner.capture_drafts_ahead(CAPTURE_SECONDS)
    except RuntimeError as error:
        raise SettingsError(f"The device computes no step. {str(error).rstrip('.')}.") from error
    ready = time.perf_counter()
    seconds = StartSeconds(loaded - began, profiled - loaded, allocated - profiled, ready - allocated)
    return Built(executor, size, states, adapter_names(settings.adapters, matrices), seconds)


def _step_bytes(
    decoder: PassDecoder, backend: Device, settings: ExecutorSettings, spec: ModelSpec, workers: Workers | None
) -> int:
    """Return the bytes of its own memory that a device needs for the largest step. Raises SettingsError."""
    if backend.own_memory() is None:
        return 0
    assert isinstance(backend, Backend)
    limits = settings.limits
    step = LargestStep(
        decoder.max_tokens,
        limits.max_rows,
        limits.max_model_len,
        spec.vocab_size,
        settings.shape,
        settings.windows,
        states_of(spec),
    )
    try:
        return largest_step_bytes(decoder, backend, step, None if workers is None else workers.alone())
    except RuntimeError as error:
        raise SettingsError(f"The device computes no step. {str(error).rstrip('.')}.") from error


def _kv_size(
    backend: Device, settings: ExecutorSettings, memory: MachineMemory, drafter: LoadedDrafter | None
) -> KVSize:
    limits = settings.limits
    return kv_size(
        settings.shape,
        backend.bytes_per_block(settings.shape),
        max_num_seqs=limits.max_rows,
        max_model_len=limits.max_model_len,
        kv_memory_gib=settings.engine.kv_memory,
        num_blocks=settings.engine.num_blocks,
        memory=memory,
        windows=settings.windows,
        longest_chunk=limits.longest_chunk(settings.scheduling),
        drafter_bytes=0 if drafter is None else drafter.bytes_per_block,
    )


def _kv_cache(
    backend: Device,
    settings: ExecutorSettings,
    size: KVSize,
    states: StateSize,
    spec: ModelSpec,
    drafter: LoadedDrafter | None,
) -> tuple[KVCache, Capacity]:
    shape, limits = settings.shape, settings.limits
    own = backend.bytes_per_block(shape)
    whole = own if drafter is None else own + drafter.bytes_per_block
    host_blocks = swap_blocks(settings.scheduling.swap_space, whole)
    host_blocks += swap_blocks(settings.engine.kv_cache_host, whole, option="--kv-cache-host")
    kv_cache = backend.kv_cache(shape, size.num_blocks + 1, host_blocks)  # one more, for padding
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
        generates=spec.head is not None,
        encoder_only=limits.is_bidirectional,
        adapter_slots=settings.adapters.num_slots,
    )
    return kv_cache, capacity


def _runner(
    decoder: PassDecoder,
    backend: Device,
    settings: ExecutorSettings,
    kv_cache: KVCache,
    capacity: Capacity,
    computed: ComputedModel,
    drafter: LoadedDrafter | None,
    adapters: AdapterMatrices | None,
    transfers: Sequence[PlaceTransfers],
    steps: StepActivity,
) -> ModelRunner:
    limits, kinds = settings.limits, states_of(computed.spec)
    cache = None
    if kinds:
        assert isinstance(backend, Backend)
        cache = backend.state_cache(kinds, limits.max_rows + 1, capacity.state_snapshots)  # one more, for padding
    drafting = None if drafter is None else drafter.start(capacity)
    grammars = None
    if settings.grammars is not None:
        # A GPU takes a step with drafts for several decodes' time where it has no graph of it.
        reports_forced = not limits.on_gpu or computed.graphs.tokens > 0
        grammars = GrammarRows(settings.grammars, capacity.vocab_size, reports_forced)
    layers = _layer_progress(decoder, backend, settings.shape, transfers)
    return ModelRunner(
        decoder, backend, kv_cache, capacity, cache, drafting, grammars, adapters, transfers, layers, steps
    )


def _layer_progress(
    decoder: PassDecoder, backend: Device, shape: KVShape, transfers: Sequence[PlaceTransfers]
) -> LayerProgress | None:
    """Return the layers' progress for peers, where blocks are sent and the host knows when a layer is computed."""
    if not transfers:
        return None
    from inflight.execution.kv_exchange.exchange import KVExchange

    reader = next((one for one in transfers if isinstance(one, KVExchange) and one.gives), None)
    if reader is None or backend.depth > 1 or not isinstance(decoder, Decoder):
        return None
    ends = layer_ends(shape, backend.bytes_per_block)
    if not ends:
        return None
    layers = LayerProgress(ends, reader)
    decoder.tells_layers(layers.layer_done)
    return layers


def _bytes_per_state(backend: Device, kinds: Sequence[LayerState | None]) -> int:
    """Return the bytes of a sequence's state over all layers; 0 where no layer has one."""
    if not kinds:
        return 0
    assert isinstance(backend, Backend)
    return backend.bytes_per_state(kinds)
