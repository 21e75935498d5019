"""Runner of the reference: transformers in float32, over the numbers that a GGUF file stands for.

Reads a job from standard input (see `engines`). Its answers choose the tokens that the others are asked for. With
`folder` in the job it also writes the same weights in bf16 there, for what is quantized while it is loaded; with
`spread` they are moved off the file's grid first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_models.answers import Answers, Collected, Questions
from inflight.models.gguf.gguf_model import gguf_at
from inflight.text.gguf_tokenizer import gguf_backend

_ROWS = 256  # of logits that are held at a time


def oracle(path: Path) -> Any:
    """Return the model of a GGUF file in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def spread(model: Any) -> None:
    """Move each weight of the layers' products by up to half a step of the grid that the file has rounded it to, and
    round it to bf16.

    Weights on a grid of 4 bits are found again by another rounding to 4 bits, as those of a trained model are not. The
    step is the smallest distance of two of the 32 weights that share one.
    """
    import torch

    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if not name.endswith("_proj.weight"):
            continue
        groups = weight.data.view(-1, 32)
        gaps = groups.sort(dim=1).values.diff(dim=1)
        range_ = groups.amax(dim=1, keepdim=True) - groups.amin(dim=1, keepdim=True)
        steps = torch.where(gaps > range_ / 512, gaps, torch.inf).amin(dim=1, keepdim=True)
        steps = torch.where(steps.isfinite(), steps, 0.0)
        weight.data = (groups + (torch.rand_like(groups) - 0.5) * steps).view(weight.shape).bfloat16().float()


def reference(model: Any, texts: list[np.ndarray]) -> tuple[Questions, Answers]:
    """Return the model's own answers, and the questions to others: its likeliest tokens."""
    import torch
    import transformers

    collected = Collected(Questions(texts))
    with torch.inference_mode():
        for text in texts:
            hidden = model.model(torch.from_numpy(text[:-1].astype(np.int64))[None]).last_hidden_state[0]
            for rows in hidden.split(_ROWS):
                collected.take(model.lm_head(rows).numpy())
    about = f"transformers {transformers.__version__}, float32"
    return Questions(texts, collected.chosen()), collected.answers(about)


def write_folder(model: Any, file: Path, folder: Path) -> None:
    """Write the model of a file with its weights in bf16, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)  # one read of GGUF cannot be saved
    plain.load_state_dict(model.state_dict())
    del plain.config.quantization_config
    plain.save_pretrained(folder)
    gguf = gguf_at(file)
    assert gguf is not None
    gguf_backend(gguf).save(str(folder / "tokenizer.json"))


def main() -> None:
    job = json.load(sys.stdin)
    model = oracle(Path(job["model"]))
    if job["settings"].get("spread"):
        spread(model)
    questions, answers = reference(model, Questions.load(Path(job["questions"])).texts)
    questions.save(Path(job["questions"]))
    answers.save(Path(job["answers"]))
    if job["settings"].get("folder"):
        write_folder(model, Path(job["model"]), Path(job["settings"]["folder"]))


if __name__ == "__main__":
    main()
