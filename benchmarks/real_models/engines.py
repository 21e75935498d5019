"""Engines that are asked, each in a process of its own, and the ways in which a model is held.

A job is a line of JSON to a runner's standard input: `model`, the file of `questions`, the file for `answers`, and
`settings`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.real_models.answers import Answers

_ROOT = Path(__file__).parents[2]  # where `benchmarks` can be imported


class EngineFailed(RuntimeError):
    """A runner ended without an answer; the sentence has its last words."""


@dataclass(frozen=True, slots=True)
class Runner:
    """How an engine is started: its interpreter, module and environment variables; name: for messages."""

    name: str
    module: str
    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, model: Path, questions: Path, answers: Path, settings: Mapping[str, Any]) -> Answers:
        """Ask, and return the answers, which stay in their file, too.

        Raises:
            EngineFailed: the process ended with an error.
        """
        job = {"model": str(model), "questions": str(questions), "answers": str(answers), "settings": dict(settings)}
        done = subprocess.run(
            [str(self.python), "-m", self.module],
            cwd=_ROOT,
            env={**os.environ, **self.environment},
            input=json.dumps(job),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            words = done.stderr.strip().splitlines() or ["it said nothing"]
            raise EngineFailed(f"{self.name} ended with status {done.returncode}: {words[-1]}")
        return Answers.load(answers)


REFERENCE = Runner("transformers", "benchmarks.real_models.run_reference")


def inflight(isa: str) -> Runner:
    """Return this checkout's engine on one instruction set."""
    return Runner(f"inflight, {isa}", "benchmarks.real_models.run_inflight", environment={"INFLIGHT_ISA": isa})


# Builds that `benchmarks/peers/setup.sh` makes of llama.cpp: for all that this processor has, and for AVX2 alone.
LLAMA_BUILDS = {"native": "build", "avx2": "build-avx2"}


def llama(environments: Path, build: str) -> Runner | None:
    """Return llama.cpp as `benchmarks/peers/setup.sh` has built it, or None where it has not."""
    folder = environments.absolute() / "llama"
    library = folder / LLAMA_BUILDS[build] / "bin"
    if not library.is_dir():
        return None
    variables = {"PYTHONPATH": str(folder / "source"), "LLAMA_CPP_LIB_PATH": str(library)}
    return Runner(f"llama.cpp, {build}", "benchmarks.real_models.run_llama", folder / "bin/python", variables)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to hold a model: settings of `LLM`. of_folder: of the bf16 folder and not of the file."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    of_folder: bool = False


WAYS = (
    Way("GGUF as served"),
    Way("GGUF, `--dtype float32`", {"dtype": "float32"}),
    Way("GGUF, `--kv-cache-dtype int8`", {"kv_cache_dtype": "int8"}),
    Way("GGUF, `--load-format dequantize`", {"load_format": "dequantize"}),
    Way("GGUF, dequantized, `--dtype float32`", {"load_format": "dequantize", "dtype": "float32"}),
    Way("bf16 folder", {}, True),
    Way("bf16 folder, `--kv-cache-dtype int8`", {"kv_cache_dtype": "int8"}, True),
    Way("bf16 folder, `--quantization int8`", {"quantization": "int8"}, True),
    Way("bf16 folder, `--quantization int8-all`", {"quantization": "int8-all"}, True),
    Way("bf16 folder, `int4`, groups of 32", {"quantization": "int4"}, True),
    Way("bf16 folder, `int4`, groups of 128", {"quantization": "int4", "quantization_group_size": 128}, True),
)
QUANTIZED_WAYS = tuple(way for way in WAYS if way.of_folder and "quantization" in way.settings)
AS_SERVED, DEQUANTIZED, LLAMA = WAYS[0], WAYS[3], Way("llama.cpp, GGUF")
LONG_WAYS = (AS_SERVED, WAYS[2], DEQUANTIZED, WAYS[4])
