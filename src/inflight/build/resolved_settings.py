"""Every setting in force with its reason, as records store them and the server shows them."""

from __future__ import annotations

from inflight.build.executor import Built
from inflight.build.limits import Limits
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.execution.backends.protocol import Device
from inflight.execution.computing import ComputedModel
from inflight.execution.graphs import GraphLimits
from inflight.execution.parallel.shards import kept_whole
from inflight.models.spec import ModelSpec

_WHY_KERNELS = {
    "auto": "the best instruction set of this CPU that the kernels know",
    "gpu": "our own, in Triton, and the graphs that are captured of them",
    "transformers": "as set: slow, and the bits of an answer may depend on the batch",
}


def resolved_settings(
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    limits: Limits,
    computed: ComputedModel,
    backend: Device,
    built: Built,
) -> dict[str, Resolved]:
    """Return every setting with its reason."""
    found, size, states = limits.resolved, built.kv, built.states
    snapshots = {"state_snapshots": Resolved(states.snapshots, states.reason)} if states.snapshots else {}
    return {
        "model": Resolved(
            settings.model or "built-in", f"{computed.spec.family}, {computed.parameters / 1e6:,.1f} M parameters"
        ),
        "device": found["device"],
        **_ranks(settings, computed.spec),
        "dtype": found["dtype"],
        "quantization": found["quantization"],
        "kv_cache_dtype": found["kv_cache_dtype"],
        **_graphs(limits, settings, computed.graphs),
        **_attention(settings),
        "batch_invariant": Resolved(backend.batch_invariant, _why_invariant(backend, limits, settings)),
        "kernels": Resolved(
            backend.name, _WHY_KERNELS["gpu" if limits.on_gpu and settings.backend == "auto" else settings.backend]
        ),
        "threads": found["threads"],
        **_pinning(settings),
        "max_num_seqs": found["max_num_seqs"],
        "max_num_batched_tokens": found["max_num_batched_tokens"],
        "max_model_len": found["max_model_len"],
        "block_size": Resolved(settings.block_size, "tokens per KV block"),
        "num_blocks": Resolved(size.num_blocks, size.reason),
        **snapshots,
        **_pooling(settings, computed.spec),
        **_caching(settings),
        **scheduling.resolved(),
        "depth": Resolved(backend.depth, f"plans in flight: {_why_depth(backend)}"),
        "seed": Resolved(settings.seed, "of requests that name none"),
    }


def _caching(settings: EngineSettings) -> dict[str, Resolved]:
    """Say which blocks stay cached, and how many are left free."""
    caching = settings.enable_prefix_caching
    why_evicted = (
        "the least recently used block is evicted first"
        if settings.kv_eviction == "lru"
        else "blocks of the session that is worth least are evicted first"
    )
    return {
        "prefix_caching": Resolved(caching, "prefixes are kept while there is room" if caching else "as set"),
        "kv_eviction": Resolved(settings.kv_eviction, why_evicted),
        "watermark": Resolved(settings.watermark, "share of the KV blocks that new requests leave free"),
    }


def _why_depth(backend: Device) -> str:
    return "the CPU that would plan ahead is the one that computes" if backend.depth == 1 else "the next is made early"


def _pinning(settings: EngineSettings) -> dict[str, Resolved]:
    """Say on which CPUs kernel threads run."""
    if settings.cpu_list is not None:
        return {"cpu_list": Resolved(settings.cpu_list, "as set: each thread stays on one, the first on all of them")}
    why = "each but the first has a core" if settings.pin_threads else "the system moves them"
    return {"pin_threads": Resolved(settings.pin_threads, why)}


def _why_invariant(backend: Device, limits: Limits, settings: EngineSettings) -> str:
    if backend.batch_invariant:
        return "as set, by kernels that add up in one order" if limits.on_gpu else "a CPU's kernels add up in one order"
    if limits.on_gpu and settings.backend == "auto":
        return "products of many rows are cuBLAS's, of another order in another batch; --batch-invariant has one"
    return "PyTorch's products add up in another order in another batch"


def _ranks(settings: EngineSettings, model: ModelSpec) -> dict[str, Resolved]:
    """Say how a model is split over several devices."""
    if settings.tensor_parallel_size == 1:
        return {}
    whole = (*kept_whole(model), "tables and the output projection")
    reason = f"as set: heads and widths of matrices are cut; on each device whole are {', '.join(whole)}"
    return {"tensor_parallel_size": Resolved(settings.tensor_parallel_size, reason)}


def _pooling(settings: EngineSettings, model: ModelSpec) -> dict[str, Resolved]:
    """Say how a model with a pooling head pools."""
    if model.pooler is None:
        return {}
    if settings.score_tokens is not None:
        first, second = settings.score_tokens
        reason = f"as set: a score is the probability of {first!r} as the next token, against {second!r}"
        return {"score_tokens": Resolved(" ".join(settings.score_tokens), reason)}
    result = f"{len(model.pooler.labels)} labels" if model.pooler.labels else "a vector"
    source = "as the model's files say" if settings.pooling == "auto" else "as set"
    return {"pooling": Resolved(model.pooler.pooling, f"{source}: of which tokens {result} of a text is made")}


def _attention(settings: EngineSettings) -> dict[str, Resolved]:
    """Say that our kernels attend, where a library is set."""
    if settings.attention_backend == "auto":
        return {}
    return {"attention_backend": Resolved("auto", f"our own kernels; {settings.attention_backend} has no effect")}


def _graphs(limits: Limits, settings: EngineSettings, graphs: GraphLimits) -> dict[str, Resolved]:
    """Say which steps a GPU replays as graphs."""
    if not limits.on_gpu:
        return {}
    if not graphs.rows:
        why = "as --enforce-eager asks" if settings.enforce_eager else "the model continues no texts"
        if settings.backend == "transformers":
            why = "modules launch their operations one by one"
        return {"graph_rows": Resolved(0, f"{why}, no step is replayed as a graph")}
    others = f", and others of up to {graphs.tokens} tokens" if graphs.tokens else ""
    return {"graph_rows": Resolved(graphs.rows, f"steps of up to so many rows that only decode are graphs{others}")}
