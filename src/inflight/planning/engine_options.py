"""The settings of a plan in the options of other engines: vLLM (`vllm serve`), SGLang (`sglang.launch_server`) and
TensorRT-LLM (`trtllm-serve`, as of 1.2)."""

from __future__ import annotations

import math

from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine

CHUNKED, WHOLE = "chunked", "continuous"  # strategies that the others have, too


def vllm_options(machine: Machine, config: EngineConfig) -> str:
    """Return vLLM's options of a machine's parallelism and of its limits, which are those of each data-parallel group,
    and of each of the batches in a pipeline."""
    one, gpu = machine.parallelism, getattr(machine.model, "gpu", None)
    limits = {
        "--max-num-seqs": (config.max_num_seqs, one.data_attention),
        "--max-num-batched-tokens": (config.max_num_batched_tokens, one.batches),
    }
    given = [f"{name} {math.ceil(value / by)}" for name, (value, by) in limits.items() if value is not None]
    overlapped = ["--enable-dbo"] if gpu is not None and one.spans(gpu) else []
    return " ".join([one.vllm_options, *overlapped, *given]).strip()


def engine_options(machine: Machine, config: EngineConfig) -> str:
    """Return the options of the machine's engine; "" where it is this one, or not known."""
    engine = machine.engine
    if engine is None or engine.is_own:
        return ""
    named = {"sglang": _sglang_options, "tensorrt-llm": _tensorrt_options}.get(engine.name, _vllm_options)
    options = named(machine, config)
    if config.strategy not in (CHUNKED, WHOLE):
        options += f" (it has no strategy like {config.strategy})"
    return options


def _vllm_options(machine: Machine, config: EngineConfig) -> str:
    parts = [vllm_options(machine, config)]
    parts += ["--no-enable-chunked-prefill"] if config.strategy == WHOLE else []
    parts += ["--scheduling-policy priority"] if config.scheduling.policy == "priority" else []
    parts += ["--kv-cache-dtype fp8"] if _kv(machine) == "fp8" else []
    parts += ["--no-async-scheduling"] if machine.engine is not None and not machine.engine.overlapped else []
    return " ".join(parts)


def _sglang_options(machine: Machine, config: EngineConfig) -> str:
    """Return SGLang's options, whose limits are those of all groups, and whose tensor parallelism is over all of
    them."""
    one = machine.parallelism
    sizes = {
        "--tp-size": one.tensor * one.data_attention,
        "--dp-size": one.data_attention,
        "--ep-size": one.expert,
        "--pp-size": one.pipeline,
    }
    parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    parts += ["--enable-dp-attention"] if one.data_attention > 1 else []
    parts += [f"--max-running-requests {config.max_num_seqs}"]
    if config.strategy == WHOLE:
        parts += ["--chunked-prefill-size -1"]
    elif config.max_num_batched_tokens is not None:
        parts += [f"--chunked-prefill-size {config.max_num_batched_tokens} --enable-mixed-chunk"]
    parts += ["--enable-priority-scheduling"] if config.scheduling.policy == "priority" else []
    parts += ["--kv-cache-dtype fp8_e4m3"] if _kv(machine) == "fp8" else []
    return " ".join(parts)


def _tensorrt_options(machine: Machine, config: EngineConfig) -> str:
    """Return TensorRT-LLM's options, whose limits are those of each group, and the entries of its --config file."""
    one = machine.parallelism
    sizes = {"--tp_size": one.tensor * one.data_attention, "--ep_size": one.expert, "--pp_size": one.pipeline}
    parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    parts += [f"--max_batch_size {math.ceil(config.max_num_seqs / one.data_attention)}"]
    if config.max_num_batched_tokens is not None:
        parts += [f"--max_num_tokens {math.ceil(config.max_num_batched_tokens / one.batches)}"]
    entries = ["enable_chunked_prefill: true"] if config.strategy == CHUNKED else []
    entries += ["enable_attention_dp: true"] if one.data_attention > 1 else []
    entries += ["kv_cache_config: {dtype: fp8}"] if _kv(machine) == "fp8" else []
    return " ".join(parts) + (f", and in its --config file {', '.join(entries)}" if entries else "")


def _kv(machine: Machine) -> str:
    return str(getattr(machine.model, "kv", ""))
