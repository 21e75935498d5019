"""A trained model beside other engines: its weights in a folder that every engine's tools read, and how near the
answers of each engine's copy are.

The weights are those of the model's GGUF file, each moved by up to half a step of the file's grid and rounded to bf16
(`benchmarks.real_models.run_reference.spread`): a quantizer that found the file's own grid again would lose nothing.
The answers are compared with those of the same weights in float32.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.checkpoints import Checkpoints
from benchmarks.peers.engines import Copy, Engine
from benchmarks.peers.stepping import QUANTIZATION
from benchmarks.real_models.agreement import Agreement, agreement
from benchmarks.real_models.answers import Answers, Questions
from benchmarks.real_models.engines import REFERENCE, Runner
from benchmarks.real_models.passages import passages
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.text import Tokenizer
from inflight.text.gguf_tokenizer import read_gguf_tokenizer_config

_QUESTIONS, _REFERENCE = "questions.npz", "reference.npz"
_EVERY = 2  # passage: half of them, 2,482 positions of SmolLM2's tokens


@dataclass(frozen=True, slots=True)
class Judge:
    """Questions to the engines, and the answers of the same weights in float32, in a folder."""

    folder: Path

    def agreement(self, engine: Engine, copy: Copy, precision: str) -> Agreement:
        """Ask an engine over its copy. Raises real_models.engines.EngineFailed."""
        assert engine.answers is not None, f"{engine.name} has no runner that answers"
        runner = Runner(engine.name, engine.answers, engine.python, engine.environment)
        settings = {"quantization": QUANTIZATION[precision]} if _is_ours(engine) and precision in QUANTIZATION else {}
        with tempfile.TemporaryDirectory() as scratch:
            found = runner.run(copy.place, self.folder / _QUESTIONS, Path(scratch) / "answers.npz", settings)
        return agreement(Answers.load(self.folder / _REFERENCE), found)


class Trained:
    """A model of the catalogue, in GGUF."""

    def __init__(self, name: str):
        self.file = pull(CATALOGUE[name])

    def write(self, folder: Path) -> None:
        """Write the moved weights as a Hugging Face folder, and the questions and the reference's answers beside."""
        self._examine(folder, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(for_older_tools(config)), encoding="utf-8")
        tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", **read_gguf_tokenizer_config(GGUFModel(self.file))}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")

    def judge(self, precision: str, checkpoints: Checkpoints) -> Judge:
        """Return the judge of a precision's copies: of the file as it is, or of what is made of the moved weights."""
        if precision == "file":
            return Judge(checkpoints.made("file", lambda folder: self._examine(folder, None)))
        return Judge(checkpoints.plain())

    def _examine(self, folder: Path, weights: Path | None) -> None:
        """Write questions and the reference's answers. weights: where the moved weights go; None: they stay."""
        texts = passages(Tokenizer.load(GGUFModel(self.file)))[::_EVERY]
        Questions(texts).save(folder / _QUESTIONS)
        settings = {"folder": None if weights is None else str(weights), "spread": weights is not None}
        REFERENCE.run(self.file, folder / _QUESTIONS, folder / _REFERENCE, settings)


def for_older_tools(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config that says the bases of rotary positions also where transformers 4 reads them."""
    rotary = config.get("rope_parameters") or {}
    bases = {
        "rope_theta": rotary.get("full_attention", rotary),
        "rope_local_base_freq": rotary.get("sliding_attention"),
    }
    older = {name: of_layers["rope_theta"] for name, of_layers in bases.items() if of_layers}
    return {**older, **{name: value for name, value in config.items() if name != "_model_name_or_path"}}


def _is_ours(engine: Engine) -> bool:
    return engine.answers == "benchmarks.real_models.run_inflight"
