"""`transformers` as the oracle: builds a variant with random weights, saves it, and says what it answers.

Knows torch and transformers, which the package itself never loads; imported inside fixtures only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from .variants import settings_of

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass
class Oracle:
    """One variant on disk, its prompt of maximum length, and its logits there."""

    folder: Path
    model: Any
    prompt: np.ndarray  # int32[longest]
    logits: np.ndarray  # float32[longest, V]
    # What every instruction set asks, once found.
    rounded: np.ndarray | None = None
    continued: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)  # by prompt and number of tokens

    def bf16_logits(self) -> np.ndarray:
        """Return torch's own result for the prompt in bf16."""
        if self.rounded is None:
            self.rounded = self.loaded(self.folder, torch.bfloat16)(self.prompt)
        return self.rounded

    def loaded(self, folder: Path, dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
        """prompt → logits of the checkpoint in `folder`, loaded as users load it.

        Not `model.to(dtype)`: that would round the rotary frequencies too, which loading keeps in float32.
        """
        model = type(self.model).from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )
        return lambda prompt: _logits(model, prompt)

    def greedy(self, prompt: np.ndarray, count: int) -> list[int]:
        asked = prompt.tobytes(), count
        if asked not in self.continued:
            self.continued[asked] = self._continue(prompt, count)
        return self.continued[asked]

    def _continue(self, prompt: np.ndarray, count: int) -> list[int]:
        with torch.no_grad():
            out = self.model.generate(
                torch.tensor(prompt[None].astype(np.int64)), max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        return [int(token) for token in out[0, len(prompt) :]]


def build(variant: str, folder: Path, seed: int | None = None) -> Oracle:
    """Makes the model, saves it under `folder` in float32, and computes its logits. seed: of the weights; of each
    variant one of its own."""
    family, settings = settings_of(variant)
    config = getattr(transformers, f"{family}Config")(
        **settings, attn_implementation="eager", experts_implementation="eager"
    )
    torch.manual_seed(sum(variant.encode()) if seed is None else seed)
    sees = "vision_config" in settings
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    _randomise(model, less=1 if family.startswith(("Gemma", "Nemotron")) and not family.startswith("Gemma4") else 0)
    model.save_pretrained(folder)
    text = config.get_text_config()
    prompt = np.random.default_rng(7).integers(0, text.vocab_size, text.max_position_embeddings).astype(np.int32)
    return Oracle(folder, model, prompt, _logits(model, prompt))


def _randomise(model: Any, less: float) -> None:
    """Initial weights hide mistakes: norms are 1, biases 0, and attention is all but uniform. less: what norms are
    stored without."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5 - less, 1.5 - less)
            elif name.endswith("scale"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "embed" in name:
                parameter.normal_(0, 0.5)
            else:
                parameter.normal_(0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0, 0.2)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)


def _logits(model: Any, prompt: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor(prompt[None].astype(np.int64))).logits[0].float().numpy())
