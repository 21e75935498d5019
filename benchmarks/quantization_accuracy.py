"""What quantizing costs in accuracy: perplexity of the built-in model, and logits of a random one, against float32.

Perplexity is taken of what the built-in model was not trained on: the questions of `builtin/unseen.jsonl` with the
answers that they ask for. Of the answers alone it is near 1, because the model knows them by heart and only has to find
the right one; of whole conversations it is higher, because training never asked it to predict a question. The same
questions are then answered greedily, and the answers compared token by token.

A model of Qwen2.5-0.5B's shape with random bf16 weights says nothing, but its logits can be compared: by their error
relative to their spread around the mean, by how often the likeliest token stays the same after the same context, and
by how far two greedy continuations of the same prompt agree. Of many words with nearly equal chances the likeliest
changes easily; a trained model is surer of itself.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.results import table, write_section
from benchmarks.shapes import QWEN25_05B, write_config
from inflight.api import LLM, SamplingParams
from inflight.build import BUILT_IN
from inflight.config.engine import DTypeChoice, EngineSettings, KVCacheChoice, QuantizationChoice
from inflight.config.threads import resolve_threads
from inflight.core.types.plan import Capacity, Chunk, NewRow
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.execution.decoder import Decoder
from inflight.execution.memory import kv_shape
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec
from inflight.text import ChatTemplate, Conversation, Tokenizer

ROOT = Path(__file__).parent.parent
SLAB = 32  # rows of logits over a large vocabulary at a time


@dataclass(frozen=True)
class Held:
    """How a model is held."""

    name: str
    dtype: DTypeChoice
    quantization: QuantizationChoice
    kv: KVCacheChoice = "auto"
    group_size: int = 32


WAYS = (
    Held("float32", "float32", "none"),
    Held("bfloat16", "bfloat16", "none"),
    Held("int8", "bfloat16", "int8"),
    Held("int8-all", "bfloat16", "int8-all"),
    Held("int4", "bfloat16", "int4"),
    Held("int4, groups of 128", "bfloat16", "int4", group_size=128),
    Held("int4-all", "bfloat16", "int4-all"),
    Held("bfloat16, KV in int8", "bfloat16", "none", "int8"),
    Held("int8, KV in int8", "bfloat16", "int8", "int8"),
)


# -- the built-in model -------------------------------------------------------------------------------------------
def unseen_answers(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer with its end) as token ids, one for each unseen question that asks for one certain answer."""
    template = ChatTemplate.load(BUILT_IN)
    answers: dict[str, str] = {}
    for path in sorted((ROOT / "builtin" / "data").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            answers |= dict.fromkeys(entry["questions"], entry["answer"])
    pairs = []
    for line in (ROOT / "builtin" / "unseen.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["like"] in answers:
            prompt = template.render(Conversation([{"role": "user", "content": case["question"]}]))
            ids = tokenizer.encode(prompt, add_special_tokens=False)
            pairs.append((ids, tokenizer.encode(answers[case["like"]] + "<|end|>", add_special_tokens=False)))
    return pairs


def perplexity(llm: LLM, prompts: Sequence[list[int]], scored_from: Sequence[int]) -> tuple[float, int]:
    """Of the tokens of each prompt from `scored_from` (at least 1) on; and how many they are."""
    outputs = llm.generate(list(prompts), SamplingParams(max_tokens=0, prompt_logprobs=0))
    logprobs = [
        token.logprob
        for output, start in zip(outputs, scored_from, strict=True)
        for token in (output.prompt_token_logprobs or [])[start - 1 :]
    ]
    return math.exp(-sum(logprobs) / len(logprobs)), len(logprobs)


def built_in(ways: Sequence[Held]) -> str:
    pairs = unseen_answers(Tokenizer.load(BUILT_IN))
    talks = [prompt + answer for prompt, answer in pairs]
    rows: list[list[object]] = []
    base, spoken_first = (0.0, 0.0), list[list[int]]()
    for way in ways:
        with LLM(
            dtype=way.dtype,
            quantization=way.quantization,
            quantization_group_size=way.group_size,
            kv_cache_dtype=way.kv,
            num_blocks=2048,
        ) as llm:
            answers, answer_tokens = perplexity(llm, talks, [len(prompt) for prompt, _ in pairs])
            whole, _ = perplexity(llm, talks, [1] * len(talks))
            said = llm.generate([prompt for prompt, _ in pairs], SamplingParams(temperature=0, max_tokens=256))
        spoken = [list(one.outputs[0].token_ids) for one in said]
        if not rows:
            base, spoken_first = (answers, whole), spoken
        right = sum(one == answer for one, (_, answer) in zip(spoken, pairs, strict=True))
        same = sum(one == other for one, other in zip(spoken, spoken_first, strict=True))
        rows.append(
            [
                way.name,
                f"{answers:.4f} ({answers / base[0] - 1:+.2%})",
                f"{whole:.3f} ({whole / base[1] - 1:+.2%})",
                f"{right} of {len(pairs)}",
                f"{same} of {len(pairs)}",
            ]
        )
    head = [
        "held in",
        "perplexity of answers",
        "of whole conversations",
        "answered exactly",
        "answered as float32 does",
    ]
    return (
        f"The built-in model on {len(pairs)} unseen questions with one certain answer, {answer_tokens:,} tokens of "
        f"answers, {sum(map(len, talks)) - len(talks):,} tokens in all.\n\n{table(head, rows)}"
    )


# -- a random model ---------------------------------------------------------------------------------------------------
class Alone:
    """A model that computes one sequence at a time."""

    def __init__(self, config: ModelSpec, way: Held, length: int):
        threads = int(resolve_threads(EngineSettings()).value)
        backend = open_backend("float32" if way.dtype == "float32" else "bfloat16", threads)
        # The checkpoint is bf16 for all: how it is held is what differs.
        source = DummyWeights("bfloat16")
        weights = load_weights(config, source, backend, length, None, way.quantization, way.group_size)
        blocks = -(-length // 16)
        self._decoder = Decoder(config, weights, backend, length, SLAB)
        self._backend = backend
        self._kv_cache = backend.kv_cache(kv_shape(config, 16, way.kv == "int8"), blocks)
        self._slots = backend.request_slots(Capacity(blocks, 16, 1, length, config.vocab_size), 0)
        self._known: tuple[int, ...] = ()

    def compute(self, token_ids: Sequence[int], start: int = 0) -> int:
        """The tokens that follow `start` computed ones; returns how many."""
        count = len(token_ids)
        self._known = (*self._known[:start], *token_ids)
        blocks = tuple(range(-(-len(self._known) // 16)))
        new = NewRow(0, self._known, len(self._known), SamplingParams(), 0, 0)
        chunk = Chunk(0, 0, start, count, blocks, False)
        self._batch = self._backend.prepare(self._slots, self._kv_cache, [chunk], [new])
        self._decoder.forward(self._batch)
        return count

    def logits(self, first: int, count: int) -> Array:
        """After tokens [first, first + count) of the last computation; overwritten by the next call."""
        logits: Array = self._decoder.logits(self._batch, range(first, first + count)).array[:count]  # type: ignore[attr-defined]
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        last, start, token_ids = self.compute(prompt) - 1, len(prompt), list[int]()
        for _ in range(count):
            token_ids.append(int(self.logits(last, 1).argmax()))
            last = self.compute(token_ids[-1:], start) - 1
            start += 1
        return token_ids


def compared(models: Sequence[Alone], prompts: Sequence[list[int]]) -> Iterator[list[tuple[float, float, int]]]:
    """Per slab of positions and model: squared error against the first model's logits, relative to their variance, and
    how many likeliest tokens are the same; summed over the slab's rows."""
    for prompt in prompts:
        for model in models:
            model.compute(prompt)
        for first in range(0, len(prompt), SLAB):
            count = min(SLAB, len(prompt) - first)
            exact = models[0].logits(first, count).copy()
            spread = exact.var(axis=1)
            best = exact.argmax(axis=1)
            told = []
            for model in models:
                logits = model.logits(first, count)
                errors = np.square(logits - exact).mean(axis=1) / spread
                told.append((float(errors.sum()), float((logits.argmax(axis=1) == best).sum()), count))
            yield told


def agreed(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def random_model(ways: Sequence[Held], prompts: int, length: int, outputs: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        config = read_folder(write_config(Path(folder) / "model", QWEN25_05B), to_run=True)
    models = [Alone(config, way, length + outputs) for way in ways]
    random = np.random.default_rng(0)
    texts = [random.integers(0, config.vocab_size, length).tolist() for _ in range(prompts)]
    sums = np.sum(list(compared(models, texts)), axis=0)
    spoken = [[model.greedy(text, outputs) for text in texts] for model in models]
    rows = []
    for way, (error, same, count), answers in zip(ways, sums, spoken, strict=True):
        lengths = sorted(agreed(a, b) for a, b in zip(answers, spoken[0], strict=True))
        middle = lengths[len(lengths) // 2]
        rows.append([way.name, f"{math.sqrt(error / count):.2%}", f"{same / count:.1%}", f"{middle} of {outputs}"])
    head = ["held in", "logit error", "same likeliest token", "greedy tokens until the first other one, median"]
    return (
        f"Random bf16 weights in Qwen2.5-0.5B's shape, {prompts} prompts of {length} random tokens, against the same "
        f"weights in float32.\n\n{table(head, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of a random prompt")
    parser.add_argument("--outputs", type=int, default=32, help="tokens of a greedy continuation")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = built_in(WAYS)
    print(body, flush=True)
    random = random_model(WAYS, arguments.prompts, arguments.length, arguments.outputs)
    print(random)
    if arguments.write:
        command = (
            f"python -m benchmarks.quantization_accuracy --prompts {arguments.prompts} --length {arguments.length} "
            f"--outputs {arguments.outputs}"
        )
        write_section("quantization_accuracy", "What quantizing costs in accuracy", command, f"{body}\n\n{random}")


if __name__ == "__main__":
    main()
