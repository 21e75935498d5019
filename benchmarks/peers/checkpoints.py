"""Checkpoints of random weights on disk, the same for every engine, and the copies that single engines want.

Knows the layouts: a Hugging Face folder in bf16, which inflight and vLLM load; int8 weights in the layout of
compressed-tensors for vLLM; OpenVINO's own format, exported by its own environment. A copy is made once and kept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.comparison import tell
from benchmarks.peers.tokenizer import END, write_tokenizer
from benchmarks.shapes import write_config

_WEIGHTS = "model.safetensors"


class ExportFailed(RuntimeError):
    """A copy could not be made; the sentence has the exporter's last words."""


class Checkpoints:
    """Of one shape, below a folder. openvino: the python of the environment that can export, if there is one."""

    def __init__(self, folder: Path, shape: dict[str, object], openvino: Path | None = None):
        self._folder = folder
        self._shape = shape
        self._openvino = openvino

    def plain(self) -> Path:
        """bf16, in the layout that everybody reads."""
        return self._made("bf16", self._write_plain)

    def vllm_int8(self) -> Path:
        """Per-channel int8 weights, rounded to nearest, and per-token int8 activations. The output projection stays
        in bf16."""
        return self._made("vllm-int8", self._write_vllm_int8)

    def openvino(self, weights: str) -> Path:
        """weights: fp16 or int8, as its exporter names them."""
        return self._made(f"openvino-{weights}", lambda folder: self._export(folder, weights))

    def _made(self, name: str, write: Callable[[Path], None]) -> Path:
        """Written beside its place and moved there whole, so that an interrupted one is never taken."""
        place = self._folder / name
        if not place.exists():
            tell(f"making {name} in {self._folder}")
            unfinished = self._folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            write(unfinished)
            unfinished.rename(place)
        return place

    def _write_plain(self, folder: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        write_config(folder, self._shape)
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
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

    def _export(self, folder: Path, weights: str) -> None:
        assert self._openvino is not None, "asked for without its environment"
        command = [str(self._openvino), "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(self.plain()), "--task", "text-generation-with-past", "--weight-format", weights]
        done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
        if done.returncode:
            tell(done.stderr)
            raise ExportFailed(f"its export to {weights} failed: {done.stderr.strip().splitlines()[-1]}")


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
