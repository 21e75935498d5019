"""Runner of the reference: transformers in float32, over the numbers that a GGUF file stands for.

Reads a job from standard input (see `engines`). Its answers choose the tokens that the others are asked for. With
`folder` in the job it also writes the same weights in bf16 there, for what is quantized while it is loaded.
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
    questions, answers = reference(model, Questions.load(Path(job["questions"])).texts)
    questions.save(Path(job["questions"]))
    answers.save(Path(job["answers"]))
    if job["settings"].get("folder"):
        write_folder(model, Path(job["model"]), Path(job["settings"]["folder"]))


if __name__ == "__main__":
    main()
