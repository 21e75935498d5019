"""The engines that are compared: how each is started, over which copy of the model, and what it cannot do.

Knows paths and environments; a peer whose environment is missing is left out with a sentence.
"""

from __future__ import annotations

import ctypes.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.checkpoints import Checkpoints

PRECISIONS = ("bf16", "int8", "int8-all")


@dataclass(frozen=True, slots=True)
class Engine:
    """models: of each precision it has, what gives the folder of its copy.

    notes: what to know of a precision when figures are compared.
    """

    name: str
    python: Path
    module: str
    models: Mapping[str, Callable[[], Path]]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> str | None:
        """Why it is left out, if it is."""
        if self.python.exists():
            return None
        return f"{self.name} is left out: there is no environment of it; benchmarks/peers/setup.sh makes one."


def inflight(checkpoints: Checkpoints, source: Path) -> Engine:
    """source: the folder that this program's own inflight is imported from."""
    return Engine(
        "inflight",
        Path(sys.executable),
        "benchmarks.peers.run_inflight",
        dict.fromkeys(PRECISIONS, checkpoints.plain),
        environment={"PYTHONPATH": str(source)},
        notes={
            "int8": "int8 weights by channel and activations by token; output projection in bf16",
            "int8-all": "the output projection in int8 too",
        },
    )


def vllm(checkpoints: Checkpoints, python: Path, cache: Path) -> Engine:
    """cache: folder in which it keeps what it compiles."""
    return Engine(
        "vLLM",
        python,
        "benchmarks.peers.run_vllm",
        {"bf16": checkpoints.plain, "int8": checkpoints.vllm_int8},
        environment={"LD_PRELOAD": _preloaded(python), "VLLM_CACHE_ROOT": str(cache)},
        notes={"int8": "int8 weights by channel and activations by token; output projection in bf16"},
    )


def openvino(checkpoints: Checkpoints, python: Path) -> Engine:
    int8 = "int8 weights by channel, the output projection and the table too; activations as it chooses"
    return Engine(
        "OpenVINO GenAI",
        python,
        "benchmarks.peers.run_openvino",
        {
            "bf16": lambda: checkpoints.openvino("fp16"),
            "int8": lambda: checkpoints.openvino("int8"),
            "int8-all": lambda: checkpoints.openvino("int8"),
        },
        notes={"int8": int8, "int8-all": int8},
    )


def _preloaded(python: Path) -> str:
    """What vLLM's guide for CPUs asks to preload: tcmalloc and Intel's OpenMP. setup.sh puts the former beside the
    latter where the system has none."""
    environment = python.parent.parent
    here = sorted(environment.glob("usr/lib/*/libtcmalloc_minimal.so.4"))
    allocator = str(here[0]) if here else ctypes.util.find_library("tcmalloc_minimal")
    libraries = [allocator, *map(str, environment.glob("lib/libiomp5.so"))]
    return ":".join(library for library in libraries if library)
