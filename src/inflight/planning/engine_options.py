"""The settings of a plan in the options of other engines: vLLM (`vllm serve`), SGLang (`sglang.launch_server`) and
TensorRT-LLM (`trtllm-serve`, as of 1.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.simulate.hardware import nearest_precision
from inflight.simulate.roofline import Roofline

TENSORRT = "TensorRT-LLM"
CHUNKED_STRATEGY, WHOLE_STRATEGY = "chunked", "continuous"  # strategies that the others have, too
LENGTH_STEP = 1024  # tokens, in multiples of which a longest request is allowed


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of a command line, and sentences on settings that it cannot have."""

    line: str
    notes: tuple[str, ...] = ()


def vllm_options(machine: Machine, config: EngineConfig, longest: int) -> EngineOptions:
    """Return vLLM's options of a machine and its settings. Limits are those of each data-parallel group, and of each of
    the batches in a pipeline.

    Args:
        longest: Tokens of the longest request. Without a limit vLLM starts only where a request as long as the model
            allows fits into memory, and where prompts are whole, into a step.
    """
    one, gpu = machine.parallelism, getattr(machine.model, "gpu", None)
    length = _length(machine, longest)
    step = _step(config, one.batches, length)
    parts = [one.vllm_options]
    parts += ["--enable-dbo"] if gpu is not None and one.spans(gpu) else []
    parts += [f"--max-model-len {length}", f"--max-num-seqs {math.ceil(config.max_num_seqs / one.data_attention)}"]
    parts += [] if step is None else [f"--max-num-batched-tokens {step}"]
    parts += ["--quantization fp8"] if _quantizes(machine) else []
    parts += ["--no-enable-chunked-prefill"] if config.strategy == WHOLE_STRATEGY else []
    parts += ["--scheduling-policy priority"] if config.scheduling.policy == "priority" else []
    parts += ["--kv-cache-dtype fp8"] if _kv(machine) == "fp8" else []
    parts += ["--no-async-scheduling"] if machine.engine is not None and not machine.engine.overlapped else []
    return EngineOptions(_joined(parts), _notes("vLLM", machine, config))


def engine_options(machine: Machine, config: EngineConfig, longest: int) -> EngineOptions | None:
    """Return the options of the machine's engine; None where it is this one, or not known. longest: tokens of the
    longest request."""
    engine = machine.engine
    if engine is None or engine.is_own:
        return None
    if engine.name == "sglang":
        return EngineOptions(_sglang_options(machine, config, longest), _notes("SGLang", machine, config))
    if engine.name == "tensorrt-llm":
        notes = (*_tensorrt_notes(machine, config), *_notes(TENSORRT, machine, config))
        return EngineOptions(_tensorrt_options(machine, config, longest), notes)
    return vllm_options(machine, config, longest)


def _notes(title: str, machine: Machine, config: EngineConfig) -> tuple[str, ...]:
    """Return sentences on settings that an engine of this title cannot have, and on weights that it does not make."""
    notes = []
    if config.strategy not in (CHUNKED_STRATEGY, WHOLE_STRATEGY):
        notes.append(f"{title} has no strategy like {config.strategy}.")
    needed = _other_weights(machine)
    if needed is not None and (title == TENSORRT or not _quantizes(machine)):
        notes.append(f"Its model has to be a checkpoint in {needed}, which the published one is not.")
    return tuple(notes)


def _sglang_options(machine: Machine, config: EngineConfig, longest: int) -> str:
    """Return SGLang's options, whose limits are those of all groups (of a step: in one stage of a pipeline), and whose
    tensor parallelism is over all groups."""
    one, engine = machine.parallelism, machine.engine
    parts = _sizes(
        {
            "--tp-size": one.stage_gpus,
            "--dp-size": one.data_attention,
            "--ep-size": one.expert,
            "--pp-size": one.pipeline,
        }
    )
    parts += ["--enable-dp-attention"] if one.data_attention > 1 else []
    parts += [f"--context-length {_length(machine, longest)}", f"--max-running-requests {config.max_num_seqs}"]
    rows = math.ceil(config.max_num_seqs / one.batches)
    parts += [f"--cuda-graph-max-bs {rows}"] if engine is not None and rows > engine.graph_tokens else []
    if config.strategy == WHOLE_STRATEGY:
        parts += ["--chunked-prefill-size -1"]
    elif config.max_num_batched_tokens is not None:
        step = math.ceil(config.max_num_batched_tokens / one.pipeline)
        parts += [f"--chunked-prefill-size {step} --enable-mixed-chunk"]
    parts += ["--enable-priority-scheduling"] if config.scheduling.policy == "priority" else []
    parts += ["--quantization fp8"] if _quantizes(machine) else []
    parts += ["--kv-cache-dtype fp8_e4m3"] if _kv(machine) == "fp8" else []
    return _joined(parts)


def _tensorrt_options(machine: Machine, config: EngineConfig, longest: int) -> str:
    """Return TensorRT-LLM's options, whose limits are those of each group. Its groups are single GPUs of a stage."""
    divided, length = machine.parallelism, _length(machine, longest)
    groups = divided.stage_gpus if divided.data_attention > 1 else 1
    parts = _sizes({"--tp_size": divided.stage_gpus, "--ep_size": divided.expert, "--pp_size": divided.pipeline})
    parts += [f"--max_seq_len {length}", f"--max_batch_size {math.ceil(config.max_num_seqs / groups)}"]
    step = _step(config, groups * divided.pipeline, length)
    parts += [] if step is None else [f"--max_num_tokens {step}"]
    return _joined(parts)


def _tensorrt_notes(machine: Machine, config: EngineConfig) -> list[str]:
    divided = machine.parallelism
    entries = ["enable_chunked_prefill: true"] if config.strategy == CHUNKED_STRATEGY else []
    entries += ["enable_attention_dp: true"] if divided.data_attention > 1 else []
    entries += ["kv_cache_config: {dtype: fp8}"] if _kv(machine) == "fp8" else []
    notes = [f"Its --config file has to hold {', '.join(entries)}."] if entries else []
    if divided.data_attention > 1 and divided.tensor > 1:
        notes.append(
            f"{TENSORRT} divides attention by sequences among all {divided.stage_gpus} GPUs of a stage: it has "
            f"DP{divided.stage_gpus} in place of DP{divided.data_attention} TP{divided.tensor}, and its figures are "
            "other ones."
        )
    return notes


def _length(machine: Machine, longest: int) -> int:
    """Return the limit on prompt and answer together, as far as the model and memory allow."""
    return min(LENGTH_STEP * math.ceil(longest / LENGTH_STEP), machine.tokens, machine.max_model_len)


def _step(config: EngineConfig, batches: int, length: int) -> int | None:
    """Return the tokens of a step of one batch; of whole prompts it holds the longest request."""
    if config.max_num_batched_tokens is None:
        return None
    step = math.ceil(config.max_num_batched_tokens / batches)
    return max(step, length) if config.strategy == WHOLE_STRATEGY else step


def _other_weights(machine: Machine) -> str | None:
    """Return the format of weights where it is another than the published one."""
    model = machine.model
    if not isinstance(model, Roofline) or model.weights == nearest_precision(model.spec.weight_format):
        return None
    return model.weights


def _quantizes(machine: Machine) -> bool:
    """Return whether the engine itself makes the weights, as it loads plain ones."""
    model = machine.model
    return isinstance(model, Roofline) and model.spec.weight_format is None and model.weights == "fp8"


def _sizes(sizes: dict[str, int]) -> list[str]:
    return [f"{name} {size}" for name, size in sizes.items() if size > 1]


def _joined(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)


def _kv(machine: Machine) -> str:
    return str(getattr(machine.model, "kv", ""))
