"""The composition root: the one place where model, memory, scheduler, loop and text meet.

Knows how an engine is put together from settings, and records the reason of every value it chose. Only the command
line and the Python API import it.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.config.assembly import longest_chunk, make_rules, make_scheduler
from inflight.config.engine import (
    GPU_LOGIT_ROWS,
    LOGIT_ROWS,
    EngineSettings,
    cores_of,
    resolve_budget,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
    resolve_quantization,
    resolve_rows,
    resolve_threads,
)
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.core.types.plan import Capacity, Executor
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder, open_record
from inflight.execution.backends.protocol import Backend, Device, DType, KVShape, LayerState
from inflight.execution.backends.torch.device import DeviceError, check_ranks, choose
from inflight.execution.checkpoints.checkpoint import resolve_model
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.kv_groups import kv_groups
from inflight.execution.memory import (
    KVSize,
    MachineMemory,
    StateSize,
    kv_shape,
    kv_size,
    memory_of,
    state_size,
    swap_blocks,
)
from inflight.execution.parallel.faults import PeerLost, WorkerFault
from inflight.execution.parallel.shards import cut_model, kept_whole
from inflight.execution.runner import ModelRunner, copy_seconds
from inflight.execution.states import states_of
from inflight.execution.warm_up import warm_up
from inflight.frontend.defaults import sampling_defaults
from inflight.frontend.prompts import PromptEncoder, stop_text
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.models.registry import family_at, read_folder, read_generation
from inflight.models.spec import ModelSpec
from inflight.text import ChatTemplate, Tokenizer, TokenizerError

if TYPE_CHECKING:
    from inflight.execution.parallel.executor import ParallelExecutor
    from inflight.execution.parallel.workers import Workers

log = logging.getLogger(__name__)

_WHY_KERNELS = {
    "auto": "the best instruction set of this CPU that the kernels know",
    "gpu": "our own, in Triton, and the graphs that are captured of them",
    "transformers": "as set: slow, and the bits of an answer may depend on the batch",
}

BUILT_IN = Path(__file__).parent / "builtin_model"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """A model that is loaded and ready. `settings` holds every value in force with its reason; `defaults` is how the
    model's authors would have it sampled."""

    loop: EngineLoop
    executor: Executor
    tokenizer: Tokenizer | None
    prompts: PromptEncoder
    model: ModelSpec
    capacity: Capacity
    settings: dict[str, Resolved]
    defaults: SamplingParams
    kv_bytes_per_token: float


def model_folder(settings: EngineSettings) -> Path:
    return BUILT_IN if settings.model is None else resolve_model(settings.model, settings.revision)


def build_engine(
    settings: EngineSettings,
    scheduling: SchedulingSettings | None = None,
    record: Path | None = None,
    progress: Progress | None = None,
    wrap: Callable[[Executor], Executor] = lambda executor: executor,
) -> Engine:
    """Load a model and put an engine around it.

    record: file for the step record. progress(done, total): called while weights are packed. wrap: puts something
    between the engine and the model's executor, or in its place (`engine.scripted`).
    """
    try:
        with _without_collections():
            return _build(settings, scheduling or SchedulingSettings(), record, progress, wrap)
    except MemoryError as error:
        raise SettingsError(
            f"The machine's memory is not enough ({error}); lower --max-num-seqs, --max-num-batched-tokens or "
            "--kv-memory, or take a smaller model."
        ) from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """A vocabulary is some hundred thousand objects, none of which is garbage before all are made; looking them over
    again and again while they grow takes a tenth of a small model's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _Limits:
    """What is decided before a model is loaded."""

    device: Resolved
    dtype: Resolved
    quantization: Resolved
    kv_cache: Resolved
    threads: Resolved
    rows: Resolved
    budget: Resolved
    length: Resolved

    @property
    def logit_rows(self) -> int:
        """Most rows of logits at once."""
        return LOGIT_ROWS if self.device.value == "cpu" else GPU_LOGIT_ROWS


def _build(
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    record: Path | None,
    progress: Progress | None,
    wrap: Callable[[Executor], Executor],
) -> Engine:
    folder = model_folder(settings)
    files = gguf_at(folder) or folder  # opened once for all who read it
    device = _device(settings)
    computed = _computed(files, settings, str(device.value))
    with ThreadPoolExecutor(1, "text") as aside:  # a large vocabulary takes a third as long as a small model's weights
        text = aside.submit(_text, files, settings)
        return _assemble(files, computed, device, text, settings, scheduling, record, progress, wrap)


def _device(settings: EngineSettings) -> Resolved:
    """What computes: the CPU, or one of its GPUs."""
    if settings.backend == "transformers":
        return Resolved("cpu", "where --backend transformers computes")
    try:
        found = choose(settings.device)
    except DeviceError as error:
        raise SettingsError(str(error)) from None
    return Resolved(found.name, found.reason)


def _computed(files: Path | GGUFModel, settings: EngineSettings, device: str) -> ComputedModel:
    if settings.backend == "auto":
        family = None if settings.family is None else family_at(settings.family)
        spec = read_folder(files, to_run=True, family=family)
        group = settings.quantization_group_size
        captures = device != "cpu" and not settings.enforce_eager
        graph_rows = _graph_rows(settings) if captures else 0
        return KernelModel(
            spec, files, settings.load_format, settings.quantization, group, settings.seed, device, graph_rows
        )
    if isinstance(files, GGUFModel):
        raise SettingsError(
            f"--backend transformers reads folders, and {files.path.name} is a GGUF file, which our own kernels "
            "compute; leave --backend out."
        )
    try:
        from inflight.execution.transformers.model import load
    except ImportError as error:
        raise SettingsError(
            f"--backend transformers needs torch and transformers ({error}); install them: "
            "pip install 'inflight[transformers]'."
        ) from None
    return load(files, settings.dtype, settings.load_format, settings.seed)


def _assemble(
    files: Path | GGUFModel,
    computed: ComputedModel,
    device: Resolved,
    text: Future[tuple[Tokenizer | None, ChatTemplate | None]],
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    record: Path | None,
    progress: Progress | None,
    wrap: Callable[[Executor], Executor],
) -> Engine:
    """The parts, and the engine of them. text: is waited for when the weights are there."""
    model = computed.spec
    dtype, on_gpu = _dtype(settings, model), device.value != "cpu"
    rows = resolve_rows(settings, on_gpu)
    limits = _Limits(
        device=device,
        dtype=dtype,
        quantization=resolve_quantization(settings, str(dtype.value), model.weight_format),
        kv_cache=resolve_kv_cache_dtype(settings, str(dtype.value)),
        threads=resolve_threads(settings),
        rows=rows,
        budget=resolve_budget(settings, int(rows.value), scheduling.strategy, on_gpu),
        length=resolve_max_model_len(settings, model.default_model_len),
    )
    # Before the weights: a mistake in these settings is told at once.
    rules = make_rules(scheduling, int(limits.budget.value), int(limits.length.value), int(limits.rows.value))
    ranks = settings.tensor_parallel_size
    held = model if ranks == 1 else cut_model(model, ranks)
    groups = kv_groups(held, settings.block_size, int(limits.length.value))
    shape = kv_shape(held, settings.block_size, limits.kv_cache.value == "int8", groups)
    workers = None if ranks == 1 else _workers(computed, shape, limits, ranks)

    def packed(done: int, total: int) -> None:
        if text.done():
            text.result()  # a mistake in the tokenizer's files is told at once, too
        if progress is not None:
            progress(done, total)

    with _closed_by_a_fault(workers):
        computed = computed if workers is None else workers.join()
        backend = _open_backend(computed, _dtype_of(limits.dtype), int(limits.threads.value), cores_of(settings))
        executor, size, states = _executor(
            computed, shape, groups.windows, settings, scheduling, limits, backend, workers, packed
        )
    tokenizer, template = text.result()
    ends = _end_tokens(model, tokenizer)
    in_force = _in_force(settings, scheduling, limits, computed, backend, size, states)
    in_force["end_token_ids"] = ends.resolved()
    clock, driven = MonotonicClock(), wrap(executor)
    observers = [] if record is None else [_recorder(record, in_force, executor.capacity)]
    scheduler = make_scheduler(
        executor.capacity,
        rules,
        settings,
        scheduling,
        end_token_ids=ends.ids,
        stop_text=None if tokenizer is None else partial(stop_text, tokenizer),
    )
    return Engine(
        loop=EngineLoop(scheduler, driven, clock, depth=backend.depth, observers=observers),
        executor=driven,
        tokenizer=tokenizer,
        prompts=PromptEncoder(tokenizer, template, settings.seed),
        model=model,
        capacity=executor.capacity,
        settings=in_force,
        defaults=sampling_defaults(read_generation(files)),
        kv_bytes_per_token=len(groups.windows) * backend.bytes_per_block(shape) / shape.block_size,
    )


def _executor(
    computed: ComputedModel,
    shape: KVShape,
    windows: tuple[int, ...],
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    limits: _Limits,
    backend: Device,
    workers: Workers | None,
    progress: Progress | None,
) -> tuple[ModelRunner | ParallelExecutor, KVSize, StateSize]:
    """Weights, then recurrent states and the KV cache in what memory they leave, then a decoder over all. workers: of
    the other ranks, who do the same."""
    length, rows, budget = int(limits.length.value), int(limits.rows.value), int(limits.budget.value)
    decoder = computed.decoder(backend, length, budget, limits.logit_rows, progress)
    kinds, memory = states_of(computed.spec), _memory(backend, workers, settings)
    states = state_size(_bytes_per_state(backend, kinds), rows, settings.state_memory, memory)
    bytes_per_block = backend.bytes_per_block(shape)
    size = kv_size(
        shape,
        bytes_per_block,
        max_num_seqs=rows,
        max_model_len=length,
        kv_memory_gib=settings.kv_memory,
        num_blocks=settings.num_blocks,
        memory=replace(memory, available=memory.available - states.nbytes),
        windows=windows,
        longest_chunk=longest_chunk(scheduling, budget),
    )
    host_blocks = swap_blocks(scheduling.swap_space, bytes_per_block)
    kv_cache = backend.kv_cache(shape, size.num_blocks + 1, host_blocks)  # one more, for padding
    capacity = Capacity(
        num_blocks=size.num_blocks,
        block_size=settings.block_size,
        max_rows=rows,
        max_model_len=length,
        vocab_size=computed.spec.vocab_size,
        host_blocks=host_blocks,
        copy_seconds=copy_seconds(backend, kv_cache, host_blocks) if host_blocks else 0.0,
        embedding_size=computed.spec.hidden_size,
        windows=windows,
        state_snapshots=states.snapshots,
    )
    cache = None
    if kinds:
        assert isinstance(backend, Backend)
        cache = backend.state_cache(kinds, rows + 1, capacity.state_snapshots)  # one more, for padding
    executor = _with_workers(ModelRunner(decoder, backend, kv_cache, capacity, cache), workers)
    try:
        warm_up(decoder, executor)
    except RuntimeError as error:
        raise SettingsError(f"The device computes no step. {str(error).rstrip('.')}.") from error
    return executor, size, states


# -- several devices ---------------------------------------------------------------------------------------------------
def _workers(computed: ComputedModel, shape: KVShape, limits: _Limits, ranks: int) -> Workers:
    """The processes of the other ranks, which begin to load."""
    from inflight.execution.parallel.messages import Setup
    from inflight.execution.parallel.workers import Workers

    assert isinstance(computed, KernelModel)
    device = str(limits.device.value)
    if device == "cpu" and os.environ.get("INFLIGHT_ISA") != "torch":
        raise SettingsError(
            f"--tensor-parallel-size is {ranks}, which is for GPUs, but the device is the CPU "
            f"({limits.device.reason}); leave it out."
        )
    if device != "cpu":
        try:
            check_ranks(device, ranks)
        except DeviceError as error:
            raise SettingsError(str(error)) from None
    length, budget, threads = int(limits.length.value), int(limits.budget.value), int(limits.threads.value)
    return Workers(Setup(computed, _dtype_of(limits.dtype), threads, length, budget, limits.logit_rows, shape), ranks)


@contextmanager
def _closed_by_a_fault(workers: Workers | None) -> Iterator[None]:
    """Whatever ends the start of an engine ends its workers. Raises SettingsError where they are the cause."""
    try:
        yield
    except BaseException as fault:
        if workers is not None:
            workers.close()
        if isinstance(fault, WorkerFault | PeerLost):
            raise SettingsError(f"The model could not be loaded by all ranks. {fault}") from fault
        raise


def _memory(backend: Device, workers: Workers | None, settings: EngineSettings) -> MachineMemory:
    """What the rank that has least may use, once all have loaded."""
    memory = memory_of(backend)
    if workers is None:
        return memory
    available = min(memory.available, workers.await_loaded())
    if backend.own_memory() is None:  # all have the machine's
        available //= settings.tensor_parallel_size
    return replace(memory, available=available)


def _with_workers(runner: ModelRunner, workers: Workers | None) -> ModelRunner | ParallelExecutor:
    if workers is None:
        return runner
    from inflight.execution.parallel.executor import ParallelExecutor

    workers.begin(runner.capacity)
    return ParallelExecutor(runner, workers)


def _bytes_per_state(backend: Device, kinds: Sequence[LayerState | None]) -> int:
    """Of a sequence over all layers; 0 where none keeps a state."""
    if not kinds:
        return 0
    assert isinstance(backend, Backend)
    return backend.bytes_per_state(kinds)


def _in_force(
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    limits: _Limits,
    computed: ComputedModel,
    backend: Device,
    size: KVSize,
    states: StateSize,
) -> dict[str, Resolved]:
    """Every setting with its reason."""
    on_gpu = limits.device.value != "cpu"
    caching = settings.enable_prefix_caching
    snapshots = {"state_snapshots": Resolved(states.snapshots, states.reason)} if states.snapshots else {}
    return {
        "model": Resolved(
            settings.model or "built-in", f"{computed.spec.family}, {computed.parameters / 1e6:,.1f} M parameters"
        ),
        "device": limits.device,
        **_ranks(settings, computed.spec),
        "dtype": limits.dtype,
        "quantization": limits.quantization,
        "kv_cache_dtype": limits.kv_cache,
        **_graphs(limits.device, settings),
        "kernels": Resolved(backend.name, _WHY_KERNELS["gpu" if on_gpu else settings.backend]),
        "threads": limits.threads,
        "pin_threads": Resolved(
            settings.pin_threads, "each but the first has a core" if settings.pin_threads else "the system moves them"
        ),
        "max_num_seqs": limits.rows,
        "max_num_batched_tokens": limits.budget,
        "max_model_len": limits.length,
        "block_size": Resolved(settings.block_size, "tokens per KV block"),
        "num_blocks": Resolved(size.num_blocks, size.reason),
        **snapshots,
        "prefix_caching": Resolved(caching, "prefixes are kept while there is room" if caching else "as set"),
        "watermark": Resolved(settings.watermark, "share of the KV blocks that newcomers leave free"),
        **scheduling.resolved(),
        "depth": Resolved(
            backend.depth,
            "plans in flight: "
            + (
                "the CPU that would plan ahead is the one that computes"
                if backend.depth == 1
                else "the next is made early"
            ),
        ),
        "seed": Resolved(settings.seed, "of requests that name none"),
    }


def _ranks(settings: EngineSettings, model: ModelSpec) -> dict[str, Resolved]:
    """Of several devices."""
    if settings.tensor_parallel_size == 1:
        return {}
    whole = (*kept_whole(model), "tables and the output projection")
    reason = f"as set: heads and widths of matrices are cut; on each device whole are {', '.join(whole)}"
    return {"tensor_parallel_size": Resolved(settings.tensor_parallel_size, reason)}


def _graphs(device: Resolved, settings: EngineSettings) -> dict[str, Resolved]:
    """Of a GPU."""
    if device.value == "cpu":
        return {}
    if settings.enforce_eager:
        return {"graph_rows": Resolved(0, "as --enforce-eager asks, no step is replayed as a graph")}
    return {"graph_rows": Resolved(_graph_rows(settings), "steps of up to so many rows that only decode are graphs")}


def _graph_rows(settings: EngineSettings) -> int:
    """Rows of the largest graph: those whose logits are computed at once."""
    return min(int(resolve_rows(settings, on_gpu=True).value), GPU_LOGIT_ROWS)


def _text(files: Path | GGUFModel, settings: EngineSettings) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Dummy weights may come without a tokenizer: then prompts are token ids."""
    try:
        return Tokenizer.load(files), ChatTemplate.load(files)
    except TokenizerError:
        path = files.path if isinstance(files, GGUFModel) else files
        if settings.load_format == "dummy" and not (path / "tokenizer.json").exists():
            return None, None
        raise


def _dtype(settings: EngineSettings, model: ModelSpec) -> Resolved:
    if settings.dtype != "auto":
        return Resolved(settings.dtype, "as set")
    found = model.checkpoint_dtype or "no stated type"
    return Resolved("bfloat16", f"half the bytes to read of float32 (the checkpoint has {found})")


def _dtype_of(resolved: Resolved) -> DType:
    return "float32" if resolved.value == "float32" else "bfloat16"


def _open_backend(computed: ComputedModel, dtype: DType, threads: int, cores: Sequence[int]) -> Device:
    try:
        return computed.open_backend(dtype, threads, cores)
    except (ImportError, ValueError) as error:  # not built, or INFLIGHT_ISA names one that is not here
        raise SettingsError(f"The kernels cannot be used: {str(error).rstrip('.')}.") from error


@dataclass(frozen=True, slots=True)
class _EndTokens:
    """Ids that end an answer, where they were found, and those named that the model cannot draw."""

    ids: frozenset[int]
    source: str
    dropped: tuple[int, ...]

    def resolved(self) -> Resolved:
        value = ", ".join(map(str, sorted(self.ids))) or "none"
        dropped = ", ".join(map(str, self.dropped))
        return Resolved(value, f"{self.source}, without {dropped}: not in the vocabulary" if dropped else self.source)


def _end_tokens(model: ModelSpec, tokenizer: Tokenizer | None) -> _EndTokens:
    """What the model's files name; the tokenizer's end token only where they name none that there is. An id outside
    the vocabulary can never be drawn, and banning it (`min_tokens`) would break the steps of everybody beside it."""
    named = tokenizer.eos_token_id if tokenizer is not None else None
    ends = _EndTokens(frozenset(), "none: answers end by their length and by stop rules of their own", ())
    for source, ids in (("as the model's files say", model.end_token_ids), ("the tokenizer's", (named,))):
        known = {one for one in ids if one is not None}
        usable = frozenset(one for one in known if 0 <= one < model.vocab_size)
        ends = replace(ends, dropped=(*ends.dropped, *sorted(known - usable - {*ends.dropped})))
        if usable:
            ends = replace(ends, ids=usable, source=source)
            break
    if ends.dropped:
        log.warning(
            "The model's files name end tokens that its vocabulary of %d tokens does not have (%s); they are left out.",
            model.vocab_size,
            ", ".join(map(str, ends.dropped)),
        )
    return ends


def _recorder(path: Path, resolved: dict[str, Resolved], capacity: Capacity) -> Recorder:
    settings: dict[str, Any] = {name: asdict(entry) for name, entry in resolved.items()}
    return Recorder(open_record(path), settings, capacity)
