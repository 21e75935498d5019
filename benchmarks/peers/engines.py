"""The engines that are compared: how each is started, over which copy of the model, and what it cannot do."""

from __future__ import annotations

import ctypes.util
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.checkpoints import Checkpoints, Environments
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.gguf.tensor_types import TensorType

# What is compared with each other, by how the layers and then the output projection are held:
#   bf16      as the checkpoint is              int8   layers in 8 bits            int8-all  the output projection too
#   q4_0      a GGUF file as it is commonly made, and what others make in 4 bits with the output projection in 8
#   q8_0      the same in 8 bits                int4   4 bits, but that in bf16    int4-all  all in 4 bits
#   q4_k_m    the other common file in 4 bits
#   file      a trained model's GGUF file as it is
PRECISIONS = ("bf16", "int8", "int8-all", "q8_0", "q4_0", "q4_k_m", "int4-all", "int4", "file")
FOUR_BITS = ("q4_0", "q4_k_m", "int4-all", "int4", "file")
Describe = Callable[[TensorType], str]  # of a file's tensors: how an engine holds them


@dataclass(frozen=True, slots=True)
class Copy:
    """Record what an engine loads: a folder or a file. weights, output: how the matrices of the layers and the output
    projection are stored in it, as text."""

    place: Path
    weights: str
    output: str


@dataclass(frozen=True, slots=True)
class Engine:
    """models: of each precision it has, what makes or finds its copy. answers: the module that runs it for questions,
    which is asked how near its answers are to float32."""

    name: str
    python: Path
    module: str
    models: Mapping[str, Callable[[], Copy]]
    environment: Mapping[str, str] = field(default_factory=dict)
    answers: str | None = None

    @property
    def missing(self) -> str | None:
        """Why it is left out, if it is."""
        if self.python.exists():
            return None
        return f"{self.name} is left out: there is no environment of it; benchmarks/peers/setup.sh makes one."


def inflight(checkpoints: Checkpoints, source: Path) -> Engine:
    """source: the folder that this program's own inflight is imported from. GGUF files are llama.cpp's."""
    return Engine(
        "inflight",
        Path(sys.executable),
        "benchmarks.peers.run_inflight",
        {
            "bf16": lambda: Copy(checkpoints.plain(), "bf16", "bf16"),
            "int8": lambda: Copy(checkpoints.plain(), "int8, groups of 32", "bf16"),
            "int8-all": lambda: Copy(checkpoints.plain(), "int8, groups of 32", "int8"),
            **_files(checkpoints, _as_inflight_holds),
            "int4": lambda: Copy(checkpoints.plain(), "int4, groups of 32", "bf16"),
        },
        environment={"PYTHONPATH": str(source)},
        answers="benchmarks.real_models.run_inflight",
    )


def llama_cpp(checkpoints: Checkpoints, environments: Environments) -> Engine:
    return Engine(
        "llama.cpp",
        environments.llama,
        "benchmarks.peers.run_llama",
        {
            "bf16": lambda: _file(checkpoints.gguf("BF16"), _by_name),
            "int8": lambda: _file(checkpoints.gguf("Q8_0"), _by_name),
            "int8-all": lambda: _file(checkpoints.gguf("Q8_0"), _by_name),
            **_files(checkpoints, _by_name),
            "int4": lambda: _file(checkpoints.gguf("Q4_0-bf16"), _by_name),
        },
        environment={
            "PYTHONPATH": str(environments.llama_source),
            "LLAMA_CPP_LIB_PATH": str(environments.llama_build),
        },
        answers="benchmarks.real_models.run_llama",
    )


def openvino(checkpoints: Checkpoints, python: Path, group: int = 128) -> Engine:
    """group: inputs that share a scale in 4 bits; its exporter refuses one that does not divide a matrix's inputs."""
    in_groups = ("int4", "--sym", "--ratio=1.0", f"--group-size={group}")
    groups = f"int4, groups of {group}"
    return Engine(
        "OpenVINO GenAI",
        python,
        "benchmarks.peers.run_openvino",
        {
            "bf16": lambda: Copy(checkpoints.openvino("fp16"), "fp16, computed in bf16", "fp16"),
            "int8": lambda: Copy(checkpoints.openvino("int8"), "int8 by channel", "int8"),
            "int8-all": lambda: Copy(checkpoints.openvino("int8"), "int8 by channel", "int8"),
            "q8_0": lambda: Copy(checkpoints.openvino("int8"), "int8 by channel", "int8"),
            "q4_0": lambda: Copy(checkpoints.openvino(*in_groups), groups, "int8"),
            "int4": lambda: Copy(checkpoints.openvino(*in_groups), groups, "int8"),
            "int4-all": lambda: Copy(checkpoints.openvino(*in_groups, "--all-layers"), groups, "int4"),
        },
        answers="benchmarks.real_models.run_openvino",
    )


def onnxruntime(checkpoints: Checkpoints, python: Path) -> Engine:
    # Of a prompt only the last token's logits are wanted, and a tied table is held once.
    common = ("block_size=32", "algo_config=rtn", "prune_lm_head=true", "shared_embeddings=true")
    wide = "matmul_mixed_precision=last_matmul:int8"
    return Engine(
        "ONNX Runtime GenAI",
        python,
        "benchmarks.peers.run_onnxruntime",
        {
            "int8-all": lambda: Copy(checkpoints.onnx("int8", *common), "int8, groups of 32", "int8"),
            "q8_0": lambda: Copy(checkpoints.onnx("int8", *common), "int8, groups of 32", "int8"),
            "q4_0": lambda: Copy(checkpoints.onnx("int4", *common, wide), "int4, groups of 32", "int8"),
            "int4": lambda: Copy(checkpoints.onnx("int4", *common, wide), "int4, groups of 32", "int8"),
            "int4-all": lambda: Copy(checkpoints.onnx("int4", *common), "int4, groups of 32", "int4"),
        },
        answers="benchmarks.real_models.run_onnxruntime",
    )


def vllm(checkpoints: Checkpoints, python: Path, cache: Path) -> Engine:
    """cache: folder in which it keeps what it compiles."""
    return Engine(
        "vLLM",
        python,
        "benchmarks.peers.run_vllm",
        {
            "bf16": lambda: Copy(checkpoints.plain(), "bf16", "bf16"),
            "int8": lambda: Copy(checkpoints.vllm_int8(), "int8 by channel", "bf16"),
        },
        environment={"LD_PRELOAD": _preloaded(python), "VLLM_CACHE_ROOT": str(cache)},
        answers="benchmarks.real_models.run_vllm",
    )


def with_file(engine: Engine, path: Path) -> Engine:
    """Return inflight or llama.cpp with a trained model's file among what it loads."""
    describe = _as_inflight_holds if engine.name == "inflight" else _by_name
    return replace(engine, models={**engine.models, "file": lambda: _file(path, describe)})


def _files(checkpoints: Checkpoints, describe: Describe) -> dict[str, Callable[[], Copy]]:
    """Return the files that inflight and llama.cpp load alike."""
    return {
        "q8_0": lambda: _file(checkpoints.gguf("Q8_0"), describe),
        "q4_0": lambda: _file(checkpoints.gguf("Q4_0"), describe),
        "q4_k_m": lambda: _file(checkpoints.gguf("Q4_K_M"), describe),
        "int4-all": lambda: _file(checkpoints.gguf("Q4_0-pure"), describe),
    }


def _file(path: Path, describe: Describe) -> Copy:
    """Describe a GGUF file. A quantizer's mixtures, and what it does where rows do not divide into its groups, are no
    matter of the file's name: matrices are counted by their elements."""
    tensors = {name: entry for name, (_, entry) in GGUFModel(path).tensors.items()}
    elements: Counter[TensorType] = Counter()
    for name, entry in tensors.items():
        if name.startswith("blk.") and len(entry.shape) > 1:
            elements[entry.type] += math.prod(entry.shape)
    head = tensors.get("output.weight") or tensors["token_embd.weight"]
    shares = [(describe(kind), count / elements.total()) for kind, count in elements.most_common()]
    layers = [kind if share > 0.99 else f"{kind} {share:.0%}" for kind, share in shares if share >= 0.01]
    return Copy(path, ", ".join(layers), describe(head.type))


def _by_name(kind: TensorType) -> str:
    return kind.name


def _as_inflight_holds(kind: TensorType) -> str:
    return f"{kind.name} as int8" if 1 <= kind.held_bytes < 2 else kind.name


def _preloaded(python: Path) -> str:
    """Return what vLLM's guide for CPUs asks to preload: tcmalloc and Intel's OpenMP. setup.sh puts the former beside
    the latter where the system has none."""
    environment = python.parent.parent
    here = sorted(environment.glob("usr/lib/*/libtcmalloc_minimal.so.4"))
    allocator = str(here[0]) if here else ctypes.util.find_library("tcmalloc_minimal")
    libraries = [allocator, *map(str, environment.glob("lib/libiomp5.so"))]
    return ":".join(library for library in libraries if library)
