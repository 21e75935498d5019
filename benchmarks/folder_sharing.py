"""Servers that share a folder of blocks on a faulty disk, and clients that compare what they answer."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peer_kills import post
from benchmarks.served import Server
from benchmarks.shapes import TINY, write_config

CLIENTS, FAMILIES, MEMBERS, TOKENS = 4, 24, 2, 12  # prompts come in families that share most of their tokens
SHARED = 640  # tokens of the prompts of a model without a tokenizer that a family shares
REST, PATIENCE = 90.0, 180.0  # seconds in which servers come to rest, and a request has its answer
Answer = tuple[list[int], list[float]]


_SMALL = {
    **TINY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Subject:
    """A model whose sequences are stored. config: of random weights, without a tokenizer; None: the built-in model.
    blocks: of a server; disk, host: GiB, too little for all prompts."""

    config: dict[str, object] | None
    blocks: int
    disk: float
    host: float

    def options(self, folder: Path) -> tuple[str, ...]:
        """Return the options of a server with this model. folder: gets the config."""
        if self.config is None:
            return ("--threads", "1")
        given = ("--model", write_config(folder, self.config), "--load-format", "dummy")
        return ("--threads", "1", *given, "--max-num-seqs", "8")

    def body(self, number: int) -> dict[str, Any]:
        family, member = divmod(number, MEMBERS)
        prompt: str | list[int]
        if self.config is None:
            text = f"Blocks of keys and values number {family} are kept for those who come later. " * 40
            prompt = f"Family {family}. {text} Question {member}: what is kept?"
        else:
            drawn, own_tokens = random.Random(family), random.Random(-1 - number)
            prompt = [drawn.randrange(4000) for _ in range(SHARED)]
            prompt += [own_tokens.randrange(4000) for _ in range(24)]
        own = {"temperature": 0.8, "seed": number, "max_tokens": TOKENS, "ignore_eos": self.config is not None}
        return {"prompt": prompt, "logprobs": 0, "return_token_ids": True, "session_id": f"s{number % 5}", **own}


SUBJECTS = {
    "built-in": Subject(None, 160, 0.012, 0.0005),
    "windows": Subject(
        {
            **_SMALL,
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 64,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        320,
        0.012,
        0.0005,
    ),
    "recurrent": Subject(
        {
            **_SMALL,
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "tie_word_embeddings": True,
        },
        160,
        0.012,
        0.0005,
    ),
}


def answer_of(reply: dict[str, Any]) -> Answer:
    choice = reply["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@dataclass(eq=False)
class Replica:
    """One of the servers, as it is now; life: a number for each process, None while there is none. Written by the
    thread that does harm."""

    name: str
    subject: Subject
    folder: Path
    state: Path
    options: tuple[str, ...]
    server: Server | None = None
    life: int | None = None
    lives: int = 0
    totals: Counter[str] = field(default_factory=Counter)  # of ended lives, by metric
    tracebacks: int = 0

    def start(self) -> None:
        program = ("-m", "benchmarks.faulty_disk", str(self.state), str(self.folder))
        subject = self.subject
        kept = ("--kv-cache-dir", str(self.folder), "--kv-cache-disk", str(subject.disk))
        blocks = ("--num-blocks", str(subject.blocks))
        self.server = Server(*self.options, *kept, *blocks, program=program)
        self.lives += 1
        self.life = self.lives

    def end(self, how: int) -> None:
        assert self.server is not None
        if how == signal.SIGTERM:
            self.keep_totals()
        self.life = None
        self.server.process.send_signal(how)
        self.server.process.wait()
        self.tracebacks += self.server.lines().count("Traceback")
        self.server.stop()

    def metrics(self) -> dict[str, float]:
        assert self.server is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/metrics", timeout=30) as page:
            found = re.findall(r"^(inflight_(?:kv_blocks|tier_)\S*) (\S+)$", page.read().decode(), re.MULTILINE)
        return {re.sub(r'model="[^"]*",?|,?engine="[^"]*"', "", name): float(value) for name, value in found}

    def keep_totals(self) -> None:
        self.totals.update({name: int(value) for name, value in self.metrics().items() if "_total" in name})

    def at_rest(self) -> str:
        """Return what is wrong with an idle server; "" where nothing is."""
        assert self.server is not None
        last, held, blocks = time.monotonic() + REST, -1.0, -1.0
        while time.monotonic() < last:
            post(self.server, {"prompt": [1], "max_tokens": 1}, 60)
            found = {name: value for name, value in self.metrics().items() if name.startswith("inflight_kv_blocks")}
            blocks, held = sum(found.values()), sum(value for name, value in found.items() if '"held"' in name)
            if not held and blocks == self.subject.blocks:
                return ""
            time.sleep(0.5)
        return f"server {self.name} holds {held:g} of {blocks:g} blocks (of {self.subject.blocks}) without requests"


class Clients:
    def __init__(self, subject: Subject, replicas: list[Replica], expected: list[Answer]):
        self._subject, self._replicas, self._expected = subject, replicas, expected
        self.counts: Counter[str] = Counter()
        self.sentences: Counter[str] = Counter()
        self._lock, self._idle = threading.Lock(), threading.Semaphore(0)
        self._go, self._over = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._main, args=(seed,), daemon=True) for seed in range(CLIENTS)]
        for one in self._threads:
            one.start()

    def ask_while(self, harm: Callable[[], None]) -> None:
        """Until it has been done; returns once all have their answers."""
        self._go.set()
        try:
            harm()
        finally:
            self._go.clear()
            for _ in self._threads:
                self._idle.acquire()

    def close(self) -> None:
        self._over.set()
        self._go.set()
        for one in self._threads:
            one.join()

    def _main(self, seed: int) -> None:
        drawn = random.Random(seed)
        while True:
            self._go.wait()
            while self._go.is_set() and not self._over.is_set():
                self._ask(drawn)
            if self._over.is_set():
                return
            self._idle.release()

    def _ask(self, drawn: random.Random) -> None:
        number, last = drawn.randrange(FAMILIES * MEMBERS), time.monotonic() + PATIENCE
        while time.monotonic() < last:
            replica = drawn.choice(self._replicas)
            if replica.life is None:
                time.sleep(0.05)
            elif self._answered(replica, number):
                return
        self._count("lost")

    def _answered(self, replica: Replica, number: int) -> bool:
        life, server = replica.life, replica.server
        assert server is not None
        try:
            reply = post(server, self._subject.body(number), PATIENCE)
        except urllib.error.HTTPError as error:
            sentence = re.search(r'"message": ?"([^"]*)"', error.read().decode(errors="replace"))
            self._count("refused with a sentence" if sentence else "errors without a sentence")
            self._count(sentence[1] if sentence else str(error), self.sentences)
            return False
        except (OSError, ValueError):
            time.sleep(0.2)  # a server that is ended may be reported a moment later
            is_known = replica.life != life
            self._count("asked again, since the server had ended" if is_known else "broken off by a living server")
            return False
        wrong = self._difference(reply, number)
        if wrong:
            self._count(f"server {replica.name}: {wrong}", self.sentences)
        self._count("wrong" if wrong else "right")
        return True

    def _difference(self, reply: dict[str, Any], number: int) -> str:
        """Return the difference from the plain engine's answer as text; "" where there is none."""
        (tokens, scores), (right, right_scores) = answer_of(reply), self._expected[number]
        pairs = zip(tokens, scores, right, right_scores, strict=False)
        alike = next((at for at, (a, b, c, d) in enumerate(pairs) if (a, b) != (c, d)), min(len(tokens), len(right)))
        if alike == len(tokens) == len(right):
            return ""
        cached, ended = reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["choices"][0]["finish_reason"]
        return (
            f"of prompt {number} {alike} of {len(right)} tokens are as they should be, {len(tokens)} came, "
            f"finish_reason {ended}, {cached} tokens of the prompt were cached"
        )

    def _count(self, name: str, counts: Counter[str] | None = None) -> None:
        with self._lock:
            (self.counts if counts is None else counts)[name] += 1
