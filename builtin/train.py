"""Trains the built-in model: a small Llama and its tokenizer, from the questions and answers in `data/`, from toy tools
and from facts to be given in JSON.

What it knows: the options. It needs torch, transformers and tokenizers, none of which belongs to the install, and
writes a plain Hugging Face folder:

    python builtin/train.py                     # trains, writes src/inflight/builtin_model, prints how much was learned
    python builtin/train.py --evaluate          # only measures the folder that is there
"""

import argparse
from pathlib import Path

import torch
from entries import read_entries
from evaluating import evaluate
from training import Settings, Training

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
UNSEEN = HERE / "unseen.jsonl"  # questions in other words, never trained on
OUTPUT = HERE.parent / "src" / "inflight" / "builtin_model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of JSON lines to learn from")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="model folder to write")
    parser.add_argument("--start", type=Path, help="model folder to go on from, with its tokenizer")
    parser.add_argument("--exercise-batches", type=int, default=900, help="of copying, before all else")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--minutes", type=float, help="end after so long instead, whatever epoch it is")
    parser.add_argument("--uses", type=int, default=300, help="conversations with tools in each epoch")
    parser.add_argument("--facts", type=int, default=550, help="facts in JSON in each epoch")
    parser.add_argument("--copies", type=int, default=250, help="exercises in copying in each epoch")
    parser.add_argument("--drills", type=int, default=4, help="times each answer's beginning is practised per epoch")
    parser.add_argument("--tokens-per-batch", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--autocast", action="store_true", help="compute in bf16 where the processor is fast at it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true", help="measure the model that is there, do not train")
    options = vars(parser.parse_args())
    data, threads, only_evaluate = (options.pop(name) for name in ("data", "threads", "evaluate"))
    torch.set_num_threads(threads)
    entries = read_entries(data)
    if not only_evaluate:
        Training(entries, Settings(**options)).run()
    evaluate(options["output"], entries, UNSEEN, options["seed"])


if __name__ == "__main__":
    main()
