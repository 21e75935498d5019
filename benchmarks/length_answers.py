"""Answers of a real model to prompts of real conversations, as long as it makes them, with its hidden states.

`python -m benchmarks.length_answers MODEL PROMPTS.json OUT.npz --answers 1000`. PROMPTS.json has conversations as
ShareGPT's: [{"id": …, "conversations": [{"from": "human" or "gpt", "value": …}, …]}, …]; a file that is cut off is read
as far as it goes. The texts are not kept: OUT.npz has token ids of prompts, lengths, and the states that the probe of
`--predictor probe` reads: at the end of each prompt, and every 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from inflight import LLM, SamplingParams
from inflight.core.types.plan import BatchPlan
from inflight.execution.length_probe import step_probe
from inflight.execution.length_probe.step_probe import AskedOutput, StepProbe

MAX_TOKENS = 512
TEMPERATURE, TOP_P = 0.7, 0.95
MAX_CHARACTERS = 600  # of a prompt's messages
TURNS = 3  # of a conversation, at most
ROWS = 48


class Prompt(NamedTuple):
    """A question, and the messages before it."""

    conversation: str
    messages: list[dict[str, str]]


class Answers(NamedTuple):
    """Arrays over N answers and S states, of E numbers each.

    Attributes:
        states: float32[S, E].
        answer: int[S], whose state it is.
        so_far: int[S], output tokens that were there.
        tokens: int[N], output tokens in all.
        complete: bool[N], whether the model ended it.
        conversation: str[N].
        prompts: int[…], token ids of all prompts.
        prompt_ends: int[N].
    """

    states: Any
    answer: Any
    so_far: Any
    tokens: Any
    complete: Any
    conversation: Any
    prompts: Any
    prompt_ends: Any

    @classmethod
    def load(cls, path: Path) -> Answers:
        with np.load(path) as file:
            return cls(**{name: file[name] for name in cls._fields})

    def prompt(self, answer: int) -> tuple[int, ...]:
        begin = int(self.prompt_ends[answer - 1]) if answer else 0
        return tuple(self.prompts[begin : int(self.prompt_ends[answer])].tolist())


def prompts(path: Path) -> Iterator[Prompt]:
    """Yield the first turns of conversations, up to the first that cannot be read."""
    text, decoder = path.read_text(encoding="utf-8", errors="replace"), json.JSONDecoder()
    at = text.index("[") + 1
    while True:
        while at < len(text) and text[at] in " \n\r,\t":
            at += 1
        try:
            one, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield from _turns(one)


def _turns(one: dict[str, Any]) -> Iterator[Prompt]:
    messages: list[dict[str, str]] = []
    for number, turn in enumerate(one["conversations"][: 2 * TURNS]):
        if turn["from"] != ("human", "gpt")[number % 2]:
            return
        messages.append({"role": ("user", "assistant")[number % 2], "content": turn["value"]})
        if sum(len(message["content"]) for message in messages) > MAX_CHARACTERS:
            return
        if number % 2 == 0:
            yield Prompt(one["id"].split("_")[0], list(messages))


class KeepingProbe(StepProbe):
    """Keeps the states that are read."""

    kept: list[tuple[int, int, Any]] = []  # noqa: RUF012 - of the one engine

    def begin(self, plan: BatchPlan) -> None:
        """Take in rows; learn nothing."""
        super().begin(BatchPlan(plan.step, (), plan.new_requests, plan.freed_rows))

    def predict(self, states: Any, asked: Sequence[AskedOutput]) -> tuple[()]:
        for state, (sequence, known, _) in zip(states, asked, strict=True):
            self.kept.append((sequence, known.so_far, state.astype(np.float32)))  # beyond float16 on some models
        return ()


def answers_of(llm: LLM, asked: Sequence[Prompt], is_chat: bool) -> Answers:
    """Ask a model whose engine has a `KeepingProbe`. Sequences are numbered as the prompts are. is_chat: the model has
    a chat template; others complete an answer."""
    settings = [
        SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=MAX_TOKENS, seed=seed)
        for seed in range(len(asked))
    ]
    KeepingProbe.kept.clear()
    if is_chat:
        outputs = llm.chat([one.messages for one in asked], settings)
    else:
        texts = [f"Question: {one.messages[-1]['content']}\nAnswer:" for one in asked]
        outputs = llm.generate(texts, settings)
    made = [one.outputs[0] for one in outputs]
    first = min(number for number, _, _ in KeepingProbe.kept)
    ids = [list(one.prompt_token_ids) for one in outputs]
    return Answers(
        np.array([state for _, _, state in KeepingProbe.kept]),
        np.array([number - first for number, _, _ in KeepingProbe.kept]),
        np.array([so_far for _, so_far, _ in KeepingProbe.kept]),
        np.array([len(one.token_ids) for one in made]),
        np.array([one.finish_reason == "stop" for one in made]),
        np.array([one.conversation for one in asked]),
        np.concatenate([np.array(one, np.int64) for one in ids]),
        np.cumsum([len(one) for one in ids]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--completions", action="store_true", help="for a model without a chat template")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    found = list(prompts(arguments.prompts))
    random.Random(7).shuffle(found)
    with mock.patch.object(step_probe, "StepProbe", KeepingProbe):
        llm = LLM(
            arguments.model,
            threads=arguments.threads,
            max_num_seqs=ROWS,
            max_model_len=2048,
            policy="sjf",
            predictor="probe",
        )
    np.savez(arguments.out, **answers_of(llm, found[: arguments.answers], not arguments.completions)._asdict())


if __name__ == "__main__":
    main()
