"""The training itself: exercises in copying first, then conversations of all kinds among them.

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
from copying_heads import begin_copying
from dialogues import about_batching, beside_tools, called, chat, of_tools_and_facts
from entries import Entry, conversations_of_epoch, drills_of_epoch, listed_conversations
from facts import fact_in_json
from model import answered_exactly, loss_of, new_model, read, save
from rows import Encoder, Row, batches_by_length
from tokens import MAX_LENGTH, train_tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from values import Values

DRILL_TOKENS = 14
SAVED_EVERY = 300.0  # seconds
WARM_UP = 400  # batches
EXERCISE_RATE = 0.5  # of the learning rate
EXERCISE_TOKENS = 640  # in a batch
EXERCISES_AT_ONCE, USES_AMONG_THEM = 400, 30  # rows that are sorted by length together
TOLD_EVERY = 50  # batches of exercises


@dataclass(frozen=True)
class Settings:
    """start: a folder to go on from. exercise_batches: of copying, before all else. uses, facts, copies: rows of tools,
    of JSON and of exercises in each epoch; exercises twice as often at first and never at last. drills: times each
    answer's beginning is practised per epoch. minutes: ends after so long, whatever epoch it is."""

    output: Path
    start: Path | None
    exercise_batches: int
    epochs: int
    minutes: float | None
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
        self.tokenizer, self.model = self._begin() if settings.start is None else read(settings.start)
        self.encoder = Encoder(self.tokenizer)
        self.optimizer = self._new_optimizer()
        self.samples = self._samples()
        self.started = self.saved = time.monotonic()
        print(f"{sum(p.numel() for p in self.model.parameters()):,} parameters", flush=True)

    def run(self) -> None:
        if self.settings.start is None:
            self._exercise()
        epoch = 0
        while (done := self._done(epoch)) < 1:
            loss = self._epoch(epoch)
            epoch += 1
            self._tell(f"epoch {epoch}, {done:.0%} done  loss {loss:.3f}")
            if time.monotonic() - self.saved > SAVED_EVERY or self._done(epoch) >= 1:
                self.saved = time.monotonic()
                self._sample()
                save(self.model, self.tokenizer, self.settings.output)

    def _begin(self) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
        tokenizer = train_tokenizer(texts_of(self.entries, random.Random(self.settings.seed)))
        model = new_model(Encoder(tokenizer))
        begin_copying(model)
        return tokenizer, model

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
        """Until the heads that copy are tuned: with small steps, which do not undo them."""
        settings, number, total = self.settings, 0, 0.0
        values = Values(self.rng)
        while number < settings.exercise_batches:
            share_of_words = 0.2 + 0.6 * number / settings.exercise_batches
            rows = list(itertools.islice(exercises(self.encoder, share_of_words, self.rng), EXERCISES_AT_ONCE))
            rows += [self.encoder.chat(one) for one in of_tools_and_facts(USES_AMONG_THEM, USES_AMONG_THEM, values)]
            for batch in self._batches(rows, EXERCISE_TOKENS):
                number += 1
                total += self._step(batch, EXERCISE_RATE * min(1.0, number / WARM_UP))
                if number % TOLD_EVERY == 0:
                    self._tell(f"exercises {number}/{settings.exercise_batches}  loss {total / TOLD_EVERY:.3f}")
                    total = 0.0

    def _done(self, epochs: float) -> float:
        if self.settings.minutes is None:
            return epochs / self.settings.epochs
        return (time.monotonic() - self.started) / (60 * self.settings.minutes)

    def _epoch(self, epoch: int) -> float:
        batches = self._batches(self._rows(self._done(epoch)), self.settings.tokens_per_batch)
        total = 0.0
        for number, batch in enumerate(batches):
            done = min(1.0, self._done(epoch + number / len(batches)))
            warm_up = min(1.0, EXERCISE_RATE + (epoch * len(batches) + number) / WARM_UP)
            total += self._step(batch, warm_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))))
        return total / len(batches)

    def _rows(self, done: float) -> list[Row]:
        """Those of one epoch."""
        rng, encoder, settings, values = self.rng, self.encoder, self.settings, Values(self.rng)
        conversations = conversations_of_epoch(self.entries, rng)
        rows = [encoder.chat(messages) for messages in about_batching(self.entries, conversations, values)]
        for turns in drills_of_epoch(self.entries, settings.drills, rng):
            drill = beside_tools(turns, rng) if rng.random() < 0.04 else chat(turns, varied=rng.random() < 0.5)
            rows.append(encoder.chat(drill).cut(DRILL_TOKENS))
        rows += [encoder.plain(entry.answer) for entry in self.entries if rng.random() < 0.1]
        rows += [encoder.chat(messages) for messages in of_tools_and_facts(settings.uses, settings.facts, values)]
        rows += itertools.islice(exercises(encoder, 0.4 + 0.5 * done, rng), round(settings.copies * 2 * (1 - done)))
        return [row for row in rows if len(row.tokens) <= MAX_LENGTH]

    def _batches(self, rows: list[Row], tokens: int) -> list[list[Row]]:
        self.rng.shuffle(rows)
        batches = list(batches_by_length(rows, tokens))
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
