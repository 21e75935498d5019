"""The training itself: exercises in copying first, then conversations of all kinds, mixed.

What it knows: the order of rows, the rate at which is learned, and how to tell how far it is. What it does not know:
what the rows say.
"""

import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from copying import exercises
from dialogues import about_batching, beside_tools, called, chat, of_tools_and_facts
from entries import Entry, conversations_of_epoch, drills_of_epoch, listed_conversations
from facts import fact_in_json
from model import answered_exactly, begin_with, loss_of, new_model, save
from rows import Encoder, Row, batches_by_length
from tokens import MAX_LENGTH, train_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from values import Values

DRILL_TOKENS = 14
SAVED_EVERY = 100.0  # seconds
TOLD_EVERY = 200  # batches of exercises
ROWS_AT_ONCE = 512  # of exercises, which are sorted by length


@dataclass(frozen=True)
class Settings:
    """start: a folder whose weights are taken over. exercise_batches: of copying, before all else. uses, facts, copies:
    rows of tools, of JSON and of exercises in each epoch. drills: times each answer's beginning is practised per epoch.
    """

    output: Path
    start: Path | None
    exercise_batches: int
    epochs: int
    uses: int
    facts: int
    copies: int
    drills: int
    tokens_per_batch: int
    learning_rate: float
    autocast: bool
    seed: int


def texts_of(entries: list[Entry], rng: random.Random) -> Iterator[str]:
    """What the tokenizer learns its pieces from."""
    for turns in listed_conversations(entries):
        yield from turns[-1]
        yield turns[-1][0].lower()
    for messages in of_tools_and_facts(300, 150, Values(rng)):
        yield from (message.text for message in messages)


class Training:
    def __init__(self, entries: list[Entry], settings: Settings) -> None:
        self.entries, self.settings = entries, settings
        self.rng = random.Random(settings.seed)
        torch.manual_seed(settings.seed)
        self.tokenizer: PreTrainedTokenizerFast = train_tokenizer(texts_of(entries, random.Random(settings.seed)))
        self.encoder = Encoder(self.tokenizer)
        self.model: LlamaForCausalLM = new_model(self.encoder)
        if settings.start is not None:
            begin_with(self.model, self.tokenizer, settings.start)
        self.optimizer = self._new_optimizer()
        self.samples = self._samples()
        self.started = self.saved = time.monotonic()
        print(f"{sum(p.numel() for p in self.model.parameters()):,} parameters", flush=True)

    def run(self) -> None:
        self._exercise()
        self.optimizer = self._new_optimizer()
        for epoch in range(self.settings.epochs):
            loss = self._epoch(epoch)
            self._tell(f"epoch {epoch + 1}/{self.settings.epochs}  loss {loss:.3f}")
            if time.monotonic() - self.saved > SAVED_EVERY or epoch + 1 == self.settings.epochs:
                self.saved = time.monotonic()
                self._sample()
                save(self.model, self.tokenizer, self.settings.output)

    def _new_optimizer(self) -> torch.optim.AdamW:
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=True,
        )

    def _exercise(self) -> None:
        batches = self.settings.exercise_batches
        total, number = 0.0, 0
        while number < batches:
            share = 0.2 + 0.7 * number / batches
            rows = list(itertools.islice(exercises(self.encoder, share, self.rng), ROWS_AT_ONCE))
            for batch in self._batches(rows):
                number += 1
                warm_up = min(1.0, number / 100)
                cool_down = min(1.0, 0.1 + (batches - number) / (0.2 * batches)) if number < batches else 0.1
                total += self._step(batch, warm_up * cool_down)
                if number % TOLD_EVERY == 0:
                    self._tell(f"exercises {number}/{batches}  loss {total / TOLD_EVERY:.3f}")
                    total = 0.0

    def _epoch(self, epoch: int) -> float:
        batches = self._batches(self._rows())
        total = 0.0
        for number, batch in enumerate(batches):
            done = (epoch + number / len(batches)) / self.settings.epochs
            warm_up = min(1.0, (epoch * len(batches) + number + 1) / 100)
            total += self._step(batch, warm_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))))
        return total / len(batches)

    def _rows(self) -> list[Row]:
        """Those of one epoch."""
        rng, encoder, settings, values = self.rng, self.encoder, self.settings, Values(self.rng)
        conversations = conversations_of_epoch(self.entries, rng)
        rows = [encoder.chat(messages) for messages in about_batching(self.entries, conversations, values)]
        for turns in drills_of_epoch(self.entries, settings.drills, rng):
            drill = beside_tools(turns, rng) if rng.random() < 0.04 else chat(turns, varied=rng.random() < 0.5)
            rows.append(encoder.chat(drill).cut(DRILL_TOKENS))
        rows += [encoder.plain(entry.answer) for entry in self.entries if rng.random() < 0.1]
        rows += [encoder.chat(messages) for messages in of_tools_and_facts(settings.uses, settings.facts, values)]
        rows += itertools.islice(exercises(encoder, 0.8, rng), settings.copies)
        return [row for row in rows if len(row.tokens) <= MAX_LENGTH]

    def _batches(self, rows: list[Row]) -> list[list[Row]]:
        self.rng.shuffle(rows)
        batches = list(batches_by_length(rows, self.settings.tokens_per_batch))
        self.rng.shuffle(batches)
        return batches

    def _step(self, batch: list[Row], share_of_rate: float) -> float:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * share_of_rate
        loss = loss_of(self.model, batch, self.settings.autocast)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def _samples(self) -> dict[str, list[Row]]:
        values = Values(random.Random(self.settings.seed + 2), unseen=True)
        samples = {
            "listed": [chat(turns) for turns in listed_conversations(self.entries)][::7],
            "calls": [called(values) for _ in range(200)],
            "JSON": [fact_in_json(values) for _ in range(200)],
        }
        return {
            name: [self.encoder.chat(one, only_last=True) for one in messages] for name, messages in samples.items()
        }

    def _sample(self) -> None:
        self.model.eval()
        for name, rows in self.samples.items():
            outcome = answered_exactly(self.model, rows)
            print(f"  {sum(outcome) / len(outcome):.1%} of a sample answered exactly: {name}", flush=True)

    def _tell(self, what: str) -> None:
        print(f"{what}  {(time.monotonic() - self.started) / 60:.1f} min", flush=True)
