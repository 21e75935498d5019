"""Checkpoints on disk, of random weights or of a trained model's, the same for every engine, and the copies that
single engines want.

A copy is made once and kept; so is the sentence of a tool that could not make one, for a second try would take as long.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line
from benchmarks.peers.tokenizer import END, write_tokenizer
from benchmarks.shapes import write_config

_WEIGHTS = "model.safetensors"
_ROOT = Path(__file__).parents[2]  # where `benchmarks` can be imported


class ExportFailed(RuntimeError):
    """A copy could not be made; the sentence has the exporter's last words."""


@dataclass(frozen=True, slots=True)
class Environments:
    """Name the pythons of the engines whose tools make copies, below the folder that setup.sh filled."""

    llama: Path
    openvino: Path
    onnxruntime: Path

    @property
    def llama_source(self) -> Path:
        """Return the source of its Python bindings, with llama.cpp below it."""
        return self.llama.parents[1] / "source"

    @property
    def llama_build(self) -> Path:
        """Programs and libraries."""
        return self.llama.parents[1] / "build/bin"


class Checkpoints:
    """Make and keep the copies of one model below a folder. shape: of random weights. environments: whose tools can be
    asked. write_plain: writes a trained model's weights in bf16 into a folder."""

    def __init__(
        self,
        folder: Path,
        shape: dict[str, object],
        environments: Environments | None = None,
        write_plain: Callable[[Path], None] | None = None,
    ):
        self._folder = folder
        self._shape = shape
        self._environments = environments
        self._write = write_plain or self._write_random

    def plain(self) -> Path:
        """bf16, in the layout that all engines read."""
        return self.made("bf16", self._write)

    def vllm_int8(self) -> Path:
        """Per-channel int8 weights, rounded to nearest, and per-token int8 activations. The output projection stays
        in bf16."""
        return self.made("vllm-int8", self._write_vllm_int8)

    def openvino(self, weights: str, *settings: str) -> Path:
        """weights: fp16, int8 or int4, as its exporter names them. settings: further options of it, which name the
        copy too."""
        name = "-".join(["openvino", weights, *(one.lstrip("-") for one in settings)])
        return self.made(name, lambda folder: self._export_openvino(folder, [weights, *settings]))

    def gguf(self, kind: str) -> Path:
        """A file: BF16 as the converter writes it, or one of `quantize_gguf.KINDS` that the quantizer makes of it."""
        write = self._convert if kind == "BF16" else lambda folder: self._quantize(folder, kind)
        return self.made(f"gguf-{kind}", write) / f"{kind}.gguf"

    def onnx(self, precision: str, *options: str) -> Path:
        """precision: int8 or int4, and further NAME=VALUE options, as its model builder names them."""
        name = "-".join(["onnx", precision, *(one.replace(":", "-") for one in options)])
        return self.made(name, lambda folder: self._export_onnx(folder, precision, options))

    def made(self, name: str, write: Callable[[Path], None]) -> Path:
        """Written beside its place and moved there whole, so that an interrupted one is never taken."""
        place = self._folder / name
        failed = self._folder / f"{name}.failed"
        if failed.exists():
            raise ExportFailed(failed.read_text(encoding="utf-8"))
        if not place.exists():
            log_line(f"making {name} in {self._folder}")
            unfinished = self._folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            try:
                write(unfinished)
            except ExportFailed as failure:
                shutil.rmtree(unfinished)
                failed.write_text(str(failure), encoding="utf-8")
                raise
            unfinished.rename(place)
        return place

    def _write_random(self, folder: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        write_config(folder, self._shape)
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder, max_shard_size="100GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        vocab_size = self._shape["vocab_size"]
        assert isinstance(vocab_size, int)
        write_tokenizer(folder, vocab_size)
        end = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"][0]
        assert end["content"] == END
        write_config(folder, {**self._shape, "bos_token_id": end["id"], "eos_token_id": end["id"]})

    def _write_vllm_int8(self, folder: Path) -> None:
        import torch
        from safetensors import safe_open
        from safetensors.torch import save_file

        source = self.plain()
        tensors: dict[str, Any] = {}
        with safe_open(source / _WEIGHTS, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # the file is no mapping
                tensors[name] = file.get_tensor(name)
                if name.endswith("_proj.weight"):
                    wide = tensors[name].float()
                    scale = (wide.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-12)
                    tensors[name] = (wide / scale).round().clamp(-127, 127).to(torch.int8)
                    tensors[name.removesuffix("weight") + "weight_scale"] = scale.to(torch.bfloat16)
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, folder)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = _compressed_tensors()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def _export_openvino(self, folder: Path, weights: Sequence[str]) -> None:
        command = [self._asked.openvino, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", self.plain(), "--task", "text-generation-with-past", "--weight-format", *weights]
        _run(f"its export to {weights[0]}", *command, folder)

    def _convert(self, folder: Path) -> None:
        command = [self._asked.llama, "-m", "benchmarks.peers.convert_gguf", self._asked.llama_source]
        _run("its conversion to GGUF", *command, self.plain(), folder / "BF16.gguf")

    def _quantize(self, folder: Path, kind: str) -> None:
        source, build = self._asked.llama_source, self._asked.llama_build
        environment = {"PYTHONPATH": str(source), "LLAMA_CPP_LIB_PATH": str(build)}
        command = [self._asked.llama, "-m", "benchmarks.peers.quantize_gguf", kind]
        _run(f"its quantizing to {kind}", *command, self.gguf("BF16"), folder / f"{kind}.gguf", **environment)

    def _export_onnx(self, folder: Path, precision: str, options: Sequence[str]) -> None:
        command = [self._asked.onnxruntime, "-m", "onnxruntime_genai.models.builder", "-i", self.plain(), "-o", folder]
        command += ["-p", precision, "-e", "cpu", "-c", folder / "cache"]
        _run(f"its export to {precision}", *command, *(["--extra_options", *options] if options else []))
        shutil.rmtree(folder / "cache", ignore_errors=True)

    @property
    def _asked(self) -> Environments:
        assert self._environments is not None, "asked for without environments"
        return self._environments


def _run(what: str, *command: object, **environment: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=_ROOT, env={**os.environ, **environment})
    if done.returncode:
        log_line(done.stderr)
        last = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise ExportFailed(f"{what} failed: {last}")


def _compressed_tensors() -> dict[str, Any]:
    """The layout's own words for: int8 of all linear layers but the output projection, weights by channel, activations
    by token as they come."""

    def numbers(strategy: str, dynamic: bool) -> dict[str, Any]:
        return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": dynamic}

    group = {
        "targets": ["Linear"],
        "weights": numbers("channel", False),
        "input_activations": numbers("token", True),
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
