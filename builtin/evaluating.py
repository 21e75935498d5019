"""How well a model folder answers: the figures of README.md.

What it knows: the sets of questions, those with values that training never saw among them. What it does not know: how
the model was trained.
"""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from dialogues import beside_tools, called, chat, refused, told
from entries import OFF_TOPIC, Entry, Turns, listed_conversations, unseen_conversations
from facts import fact_in_json
from model import answered_exactly
from rewording import reword
from rows import Encoder, Message
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast
from values import Values

DRAWN = 1000  # conversations of each kind with unseen values
Alternatives = list[list[Message]]  # one conversation, with each answer that would be right

KINDS: dict[str, Callable[[Values], list[Message]]] = {
    "calls with unseen values": called,
    "results of such calls": told,
    "requests that no tool fits": refused,
    "facts in JSON with unseen values": fact_in_json,
}


def questions(entries: list[Entry], unseen: Path, seed: int) -> dict[str, list[Alternatives]]:
    """Every set by its name."""
    rng = random.Random(seed + 1)
    listed = list(listed_conversations(entries))
    off_topic = {entry.answer for entry in entries if entry.topic == OFF_TOPIC}

    def only(turns: Turns) -> Alternatives:
        return [chat(turns)]

    sets = {
        "listed questions": [only(turns) for turns in listed],
        "varied questions": [only([*turns[:-1], (reword(turns[-1][0], rng), turns[-1][1])]) for turns in listed],
        "unseen questions": [
            [chat(turns) for turns in alternatives] for alternatives in unseen_conversations(entries, unseen)
        ],
        "listed questions beside tools": [
            [beside_tools(turns, rng)] for turns in listed[::3] if turns[-1][1] not in off_topic
        ],
    }
    for name, draw in KINDS.items():
        values = Values(random.Random(f"{seed} {name}"), unseen=True)
        sets[name] = [[draw(values)] for _ in range(DRAWN)]
    return sets


def right(model: LlamaForCausalLM, encoder: Encoder, conversations: list[Alternatives]) -> list[bool]:
    rows = [[encoder.chat(messages, only_last=True) for messages in each] for each in conversations]
    outcomes = iter(answered_exactly(model, [row for each in rows for row in each]))
    return [any([next(outcomes) for _ in each]) for each in rows]


def evaluate(folder: Path, entries: list[Entry], unseen: Path, seed: int) -> None:
    """Prints what the folder answers, with its bf16 weights widened to f32 and in bf16 throughout."""
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(folder))
    sets = questions(entries, unseen, seed)
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for name, conversations in sets.items():
            outcome = right(model, encoder, conversations)
            share = sum(outcome) / len(outcome)
            print(f"{str(dtype)[6:]}: {share:.1%} of {len(outcome)} {name} answered exactly", flush=True)
