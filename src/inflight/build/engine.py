"""Build an engine: put model, memory, scheduler, loop and text together, in the order in which they depend."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from inflight.build.adapters import AdapterPlan, plan_adapters
from inflight.build.drafting import Drafting, resolve_drafting
from inflight.build.executor import Built, ExecutorSettings, StartSeconds, build_executor
from inflight.build.kv_connectors import ConnectorSettings, KVConnectors, resolve_connectors
from inflight.build.length_probe import check_probe_file
from inflight.build.limits import Limits, resolve_device, resolve_limits, warn_of_attention_backend, warn_of_int4
from inflight.build.model import computed_model, text_files
from inflight.build.ranks import closed_by_a_fault, start_workers
from inflight.build.resolved_settings import resolved_settings
from inflight.build.text import find_end_tokens, grammars_of, load_text, read_text_prompts, warn_of_tokenizer
from inflight.config.assembly import Rules, make_rules, make_scheduler
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved, SettingsError
from inflight.config.threads import thread_cpus
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.executor import Executor
from inflight.core.types.plan import Capacity
from inflight.core.types.sampling import SamplingParams
from inflight.core.types.suspension import Suspender
from inflight.counted import seconds_of_parts
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends.protocol import Device, KVShape
from inflight.execution.backends.torch.device import first_line
from inflight.execution.checkpoints.hub import hub_cache
from inflight.execution.computing import ComputedModel
from inflight.execution.device_faults import is_out_of_memory
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.kv.kv_groups import kv_groups
from inflight.execution.memory import kv_shape
from inflight.execution.packer import Progress
from inflight.execution.parallel.shards import cut_model
from inflight.execution.runner import ModelRunner
from inflight.frontend.adapter_names import AdapterNames
from inflight.frontend.defaults import sampling_defaults
from inflight.frontend.prompts import PromptEncoder, stop_text
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.models.registry import read_generation
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import ModelSpec
from inflight.release import VERSION
from inflight.text import ChatTemplate, TextFiles, Tokenizer

if TYPE_CHECKING:
    from inflight.build.kv_transfer import KVPeerSettings
    from inflight.engine.recorder import Recorder
    from inflight.execution.kv.transfer.description import KVDescription
    from inflight.execution.kv.transfer.peer_transfers import PeerTransfers

log = logging.getLogger(__name__)

Wrap = Callable[[Executor, Resolved], Executor]


class Engine(Struct, frozen=True):
    """A model that is loaded and ready.

    Attributes:
        settings: every value in force with its reason.
        defaults: sampling as the model's authors recommend it.
        start: the seconds that its start took.
        adapters: those that requests may name.
        text_prompts: prompts before the inputs of an encoder.
        peer_transfers: transfers of blocks with peers, if there are any.
    """

    loop: EngineLoop
    executor: Executor
    tokenizer: Tokenizer | None
    prompts: PromptEncoder
    model: ModelSpec
    capacity: Capacity
    settings: dict[str, Resolved]
    defaults: SamplingParams
    kv_bytes_per_token: float
    start: StartSeconds
    adapters: AdapterNames
    text_prompts: TextPrompts = NO_PROMPTS
    peer_transfers: PeerTransfers | None = None


class _Arguments(Struct, frozen=True):
    """The arguments of `build_engine`."""

    settings: EngineSettings
    scheduling: SchedulingSettings
    record: Path | None
    progress: Progress | None
    wrap: Wrap | None
    kv_event_queue: KVEventQueue | None
    peers: KVPeerSettings | None


class _Text(Struct, frozen=True):
    """Tokenizer and chat template, which are read while weights are packed, and the seconds that this takes. prompts:
    of an encoder's inputs. header: seconds that the model's header took."""

    reading: Future[tuple[Tokenizer | None, ChatTemplate | None, float]]
    prompts: TextPrompts
    header: float

    def tokenizer(self) -> Tokenizer | None:
        """Wait for the tokenizer and return it."""
        return self.reading.result()[0]

    def watched(self, progress: Progress | None) -> Progress:
        """Raise an error of the tokenizer's files at once, not when all weights are packed."""

        def packed(done: int, total: int) -> None:
            if self.reading.done():
                self.reading.result()
            if progress is not None:
                progress(done, total)

        return packed


def build_engine(
    settings: EngineSettings,
    scheduling: SchedulingSettings | None = None,
    record: Path | None = None,
    progress: Progress | None = None,
    wrap: Wrap | None = None,
    kv_event_queue: KVEventQueue | None = None,
    peers: KVPeerSettings | None = None,
) -> Engine:
    """Load a model and build an engine for it.

    Args:
        settings: of the engine.
        scheduling: of the scheduler; None: the defaults.
        record: file for the step record.
        progress: called with (done, total) while weights are packed.
        wrap: called with the model's executor and the device; returns what the engine drives (`testing.scripted`).
        kv_event_queue: receives the changes of the prefix cache.
        peers: with which keys and values of prompts are transferred.

    Raises:
        SettingsError: the settings do not go together with each other, the model or the device.
        ModelError: the model's files cannot be used.
    """
    scheduling = scheduling or SchedulingSettings()
    try:
        with _without_collections():
            return _build(_Arguments(settings, scheduling, record, progress, wrap, kv_event_queue, peers))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        whose = "machine" if isinstance(error, MemoryError) else "device"
        raise SettingsError(
            f"The {whose}'s memory is not enough ({first_line(error)}); lower --max-num-seqs, "
            "--max-num-batched-tokens or --kv-memory, or take a smaller model."
        ) from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the garbage collector: a vocabulary is some hundred thousand objects, none of which is garbage, and
    scanning them again and again while they grow takes a tenth of a small model's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build(arguments: _Arguments) -> Engine:
    settings, began = arguments.settings, time.perf_counter()
    named = text_files(settings)
    folder = Path(named.model)
    files = gguf_at(folder) or folder  # opened once for all readers
    device = resolve_device(settings)
    computed = computed_model(files, settings, str(device.value))
    prompts = read_text_prompts(files, settings, computed.spec)
    with ThreadPoolExecutor(1, "text") as aside:  # a large vocabulary takes a third as long as a small model's weights
        text = _Text(aside.submit(_timed_text, named, files, settings), prompts, time.perf_counter() - began)
        with hub_cache(settings.download_dir):  # of adapters and draft models
            return _assemble(files, computed, device, text, arguments)


def _timed_text(
    named: TextFiles, model: Path | GGUFModel, settings: EngineSettings
) -> tuple[Tokenizer | None, ChatTemplate | None, float]:
    began = time.perf_counter()
    return *load_text(named, model, settings), time.perf_counter() - began


class _Prepared(Struct, frozen=True):
    """Everything that is resolved before weights are read, so that an error in the settings is raised at once.
    ends_early: whether the strategy may end steps early; on a GPU a step of few tokens takes about as long as one of
    many."""

    computed: ComputedModel
    device: Resolved
    limits: Limits
    ends_early: bool
    rules: Rules
    adapters: AdapterPlan
    shape: KVShape
    windows: tuple[int, ...]
    connectors: ConnectorSettings
    drafting: Drafting


class _Computing(Struct, frozen=True):
    """The executor and its surroundings. model: as it is computed here, which of several ranks is a part."""

    model: ComputedModel
    backend: Device
    grammars: CompiledGrammars | None
    connectors: KVConnectors
    built: Built


def _prepare(files: Path | GGUFModel, computed: ComputedModel, device: Resolved, arguments: _Arguments) -> _Prepared:
    settings, model = arguments.settings, computed.spec
    limits = resolve_limits(settings, model, device, arguments.scheduling.strategy)
    warn_of_attention_backend(settings)
    warn_of_int4(settings, model)
    check_probe_file(arguments.scheduling)
    scheduling = arguments.scheduling.ending_early(0) if limits.on_gpu else arguments.scheduling
    rules = make_rules(scheduling, limits.max_tokens, limits.max_model_len, limits.max_rows)
    adapters = plan_adapters(settings)
    if arguments.kv_event_queue is not None and limits.is_bidirectional:
        raise SettingsError(
            "--kv-events-config reports what the prefix cache holds, and an encoder-only model caches nothing; leave "
            "it out."
        )
    shape, windows = kv_layout(settings, limits, model)
    drafting = resolve_drafting(scheduling, computed, settings.tensor_parallel_size, limits, shape, windows)
    # Last: it begins to read all files.
    connectors = resolve_connectors(settings, arguments.peers, files, limits.is_bidirectional)
    ends_early = scheduling is arguments.scheduling
    return _Prepared(computed, device, limits, ends_early, rules, adapters, shape, windows, connectors, drafting)


def _compute(settings: EngineSettings, prepared: _Prepared, text: _Text, progress: Progress | None) -> _Computing:
    """Load weights, allocate memory and make the executor."""
    limits, shape, spec = prepared.limits, prepared.shape, prepared.computed.spec
    workers = start_workers(prepared.computed, shape, limits, settings.tensor_parallel_size)
    with closed_by_a_fault(workers):
        computed = prepared.computed if workers is None else workers.join()
        backend = _open_backend(computed, limits, settings)
        grammars = grammars_of(spec, text.tokenizer, settings.tensor_parallel_size)

        def describe(digest: str) -> KVDescription:
            from inflight.build.kv_transfer import describe_kv

            return describe_kv(VERSION, settings, limits, spec, backend, shape, prepared.windows, digest)

        connectors = KVConnectors(prepared.connectors, describe)
        executor_settings = ExecutorSettings(
            settings,
            prepared.drafting.scheduling,
            limits,
            shape,
            prepared.windows,
            prepared.adapters,
            prepared.drafting.executor_source,
            grammars,
            connectors.open,
            connectors.peer_bytes,
        )
        built = build_executor(computed, backend, executor_settings, workers, text.watched(progress))
    connectors.set_adapters(built.adapters)
    return _Computing(computed, backend, grammars, connectors, built)


def _assemble(
    files: Path | GGUFModel, computed: ComputedModel, device: Resolved, text: _Text, arguments: _Arguments
) -> Engine:
    settings, prepared = arguments.settings, _prepare(files, computed, device, arguments)
    computing = _compute(settings, prepared, text, arguments.progress)
    connectors, built = computing.connectors, computing.built
    tokenizer, template, text_seconds = text.reading.result()
    ends = find_end_tokens(computed.spec, tokenizer)
    warn_of_tokenizer(settings, computed.spec, tokenizer)
    resolved = _resolved(settings, prepared, computing) | {"end_token_ids": ends.resolved()}
    capacity = built.executor.capacity
    driven: Executor = built.executor if arguments.wrap is None else arguments.wrap(built.executor, device)
    suspender = _suspender(computing, driven, prepared.drafting.scheduling, resolved)
    scheduler = make_scheduler(
        capacity,
        prepared.rules,
        settings,
        prepared.drafting.scheduling,
        end_token_ids=ends.ids,
        stop_text=None if tokenizer is None else partial(stop_text, tokenizer),
        speculation=prepared.drafting.speculation(prepared.rules, capacity.vocab_size),
        kv_event_queue=arguments.kv_event_queue,
        sources=connectors.sources(capacity),
        identity=connectors.export_identity,
        sink=connectors.sink,
        suspends=suspender is not None,
    )
    loop = EngineLoop(
        scheduler,
        driven,
        MonotonicClock(),
        depth=computing.backend.depth,
        observers=[] if arguments.record is None else [_recorder(arguments.record, resolved, capacity)],
        grammars=computing.grammars,
        remote_kv=connectors.of_loop,
        suspender=suspender,
    )
    start = replace(built.seconds, header=text.header, text=text_seconds)
    log.debug("Loaded: %s", seconds_of_parts(start.parts()))  # at a server, its line "Ready" has them
    block_bytes = len(prepared.windows) * computing.backend.bytes_per_block(prepared.shape)
    return Engine(
        loop=loop,
        executor=driven,
        tokenizer=tokenizer,
        prompts=PromptEncoder(tokenizer, template, settings.seed, pair_template=text.prompts.of_pairs),
        model=computed.spec,
        capacity=capacity,
        settings=resolved,
        defaults=sampling_defaults(read_generation(files)),
        kv_bytes_per_token=block_bytes / prepared.shape.block_size,
        start=start,
        adapters=built.adapters,
        text_prompts=text.prompts,
        peer_transfers=connectors.peer_transfers,
    )


def _suspender(
    computing: _Computing, driven: Executor, scheduling: SchedulingSettings, resolved: dict[str, Resolved]
) -> Suspender | None:
    """Return what suspends the executor's steps, if the settings ask for it; None, and the reason in `resolved`, where
    it does not."""
    if not scheduling.prefill_suspension:
        return None
    suspends = computing.backend.depth == 1 and isinstance(driven, ModelRunner) and not computing.built.states.snapshots
    suspender = driven.suspending if suspends and isinstance(driven, ModelRunner) else None
    if suspender is None:
        resolved["prefill_suspension"] = Resolved(
            0.0,
            "steps are not suspended on a GPU, with recurrent state, where engines share the cores, where a model or "
            "heads draft, and where layers are sent to a peer as they are computed",
        )
    return suspender


def _resolved(settings: EngineSettings, prepared: _Prepared, computing: _Computing) -> dict[str, Resolved]:
    """Return every value with its reason, without the tokens that end an answer."""
    limits, adapters, drafting = prepared.limits, prepared.adapters, prepared.drafting
    found = resolved_settings(
        settings, drafting.scheduling, limits, computing.model, computing.backend, computing.built
    )
    if not prepared.ends_early:
        found["early_end_tokens"] = Resolved(0, "on a GPU a step of few tokens takes about as long as one of many")
    if adapters.num_slots:
        found |= {"max_loras": adapters.slots, "max_lora_rank": adapters.rank}
    found["speculation"] = drafting.resolved
    if settings.kv_cache_host is not None:
        found["kv_cache_host"] = Resolved(settings.kv_cache_host, "GiB of host memory for what is evicted")
    return found | computing.connectors.resolved()


def kv_layout(settings: EngineSettings, limits: Limits, model: ModelSpec) -> tuple[KVShape, tuple[int, ...]]:
    """Return the shape of a KV block on one device, and the window of each KV group."""
    ranks = settings.tensor_parallel_size
    shard = model if ranks == 1 else cut_model(model, ranks)
    groups = kv_groups(shard, settings.block_size, limits.max_model_len)
    codes = limits.kv_cache_dtype
    shape = kv_shape(shard, settings.block_size, codes in ("int8", "fp8"), groups, is_fp8=codes == "fp8")
    return shape, groups.windows


def _open_backend(computed: ComputedModel, limits: Limits, settings: EngineSettings) -> Device:
    cpus = thread_cpus(settings)  # outside, since a SettingsError is a ValueError
    try:
        return computed.open_backend(limits.number_format, limits.num_threads, cpus)
    except (ImportError, ValueError) as error:  # not built, or INFLIGHT_ISA names one that is not here
        raise SettingsError(f"The kernels cannot be used: {str(error).rstrip('.')}.") from error


def _recorder(path: Path, resolved: dict[str, Resolved], capacity: Capacity) -> Recorder:
    from inflight.engine.recorder import Recorder, open_record

    settings: dict[str, Any] = {name: asdict(entry) for name, entry in resolved.items()}
    return Recorder(open_record(path), settings, capacity)
