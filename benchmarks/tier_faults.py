"""Two servers that share a folder of blocks, under every fault of a disk and of an engine, drawn at random.

    python -m benchmarks.tier_faults [--model built-in | windows | recurrent] [--seconds 1200] [--write]

Rounds: for some seconds clients ask without a pause while one fault is on, then they rest, and both servers are asked
what they hold. Each answer, with the log-probability of every token, is compared bit for bit with that of a plain
engine. The folder is too small for all prompts, the memory for all that is asked at a time, and the first server's host
tier for anything; a request that got no answer must have been at a server that was killed or ended.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.comparison import log_line, publish
from benchmarks.folder_damages import Damages
from benchmarks.folder_sharing import CLIENTS, FAMILIES, MEMBERS, SUBJECTS, Clients, Replica, Subject, answer_of
from benchmarks.peer_kills import post
from benchmarks.results import table
from benchmarks.served import Server

ROUND, STALL = (4.0, 9.0), 36.0  # seconds; a disk is given up after 30


class Harm:
    """The faults: each takes some seconds, and all is well with the disk afterwards."""

    def __init__(self, folder: Path, replicas: list[Replica], seed: int):
        self._folder, self._replicas = folder, replicas
        self._drawn = random.Random(seed)
        self.damages = Damages(folder, self._drawn)
        self.done: Counter[str] = Counter()
        disks = ("full", "unwritable", "broken", "slow")
        self._kinds: list[tuple[str, Callable[[], None]]] = [
            *[(f"disk {word}", partial(self._disk, word)) for word in disks],
            *[("files damaged", self._damage)] * 4,
            *[("killed while it writes", self._kill)] * 2,
            ("both killed", self._kill_both),
            *[("restarted", self._restart)] * 2,
            ("folder taken away", self._take_away),
            ("nothing", lambda: self._wait(self._drawn.uniform(*ROUND))),
        ]

    def draw(self, may_stall: bool) -> tuple[str, Callable[[], None]]:
        if may_stall and self._drawn.random() < 0.05:
            return "disk stalled", lambda: self._disk("stalled", STALL)
        return self._drawn.choice(self._kinds)

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _disk(self, word: str, seconds: float = 0.0) -> None:
        """For one of the servers, or for both."""
        some = self._drawn.choice((self._replicas[:1], self._replicas[1:], self._replicas))
        for one in some:
            one.state.write_text(word, encoding="utf-8")
        self._wait(seconds or self._drawn.uniform(*ROUND))
        for one in some:
            one.state.write_text("well", encoding="utf-8")

    def _damage(self) -> None:
        last = time.monotonic() + self._drawn.uniform(*ROUND)
        while time.monotonic() < last:
            self.damages.one()
            time.sleep(self._drawn.uniform(0.0, 0.05))

    def _kill(self) -> None:
        for _ in range(self._drawn.choice((1, 2, 3))):
            one = self._drawn.choice(self._replicas)
            self._await_write()
            one.end(signal.SIGKILL)
            one.start()

    def _await_write(self) -> None:
        """Until a file is being written, as far as that is seen; not for long."""
        self._wait(self._drawn.uniform(0.5, 3.0))
        last = time.monotonic() + 1.0
        while time.monotonic() < last and not any(self._folder.rglob(".*.kv.*")):
            time.sleep(0.0005)

    def _kill_both(self) -> None:
        self._wait(self._drawn.uniform(0.5, 3.0))
        for one in self._replicas:
            one.end(signal.SIGKILL)
        for one in self._replicas:
            one.start()
        self._wait(2.0)

    def _restart(self) -> None:
        one = self._drawn.choice(self._replicas)
        self._wait(self._drawn.uniform(0.5, 3.0))
        one.end(signal.SIGTERM)
        one.start()
        self._wait(self._drawn.uniform(1.0, 3.0))

    def _take_away(self) -> None:
        self._wait(self._drawn.uniform(1.0, 3.0))
        shutil.rmtree(self._folder / "blocks-1", ignore_errors=True)
        self._wait(self._drawn.uniform(*ROUND))


def held_bytes(folder: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in folder.rglob("*.kv") if one.is_file())


KINDS = {"windows": "windows", "recurrent": "recurrent layers"}


@dataclass
class Outcome:
    """bytes: most that the folder held. wrong: sentences about blocks."""

    rounds: int = 0
    max_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


def rounds(clients: Clients, harm: Harm, replicas: list[Replica], folder: Path, seconds: float) -> Outcome:
    outcome, last = Outcome(), time.monotonic() + seconds
    while (left := last - time.monotonic()) > 0:
        name, work = harm.draw(may_stall=left > 2 * STALL)
        before = sum(clients.counts.values())
        clients.ask_while(work)
        harm.done[name] += 1
        outcome.rounds += 1
        outcome.max_bytes = max(outcome.max_bytes, held_bytes(folder))
        wrong = [sentence for one in replicas if (sentence := one.at_rest())]
        outcome.wrong += wrong
        log_line(
            f"{outcome.rounds} {name}: {sum(clients.counts.values()) - before} answers; {dict(clients.counts)} {wrong}"
        )
    return outcome


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", choices=SUBJECTS, default="built-in")
    arguments.add_argument("--seconds", type=float, default=1200)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    given = arguments.parse_args()
    subject = SUBJECTS[given.model]
    with tempfile.TemporaryDirectory() as kept:
        folder, model = Path(kept) / "folder", subject.options(Path(kept) / "model")
        with Server(*model) as alone:
            expected = [answer_of(post(alone, subject.body(number), 120)) for number in range(FAMILIES * MEMBERS)]
        more = (
            (*model, "--kv-eviction", "sessions", "--kv-cache-host", str(subject.host)),
            (*model, "--preemption", "swap", "--swap-space", str(subject.host)),
        )
        named = zip("AB", more, strict=True)
        replicas = [Replica(name, subject, folder, Path(kept) / name, options) for name, options in named]
        for one in replicas:
            one.state.write_text("well", encoding="utf-8")
            one.start()
        clients, harm = Clients(subject, replicas, expected), Harm(folder, replicas, given.seed)
        try:
            outcome = rounds(clients, harm, replicas, folder, given.seconds)
        finally:
            clients.close()
            for one in replicas:
                if one.life is not None:
                    one.end(signal.SIGTERM)
    for sentence, times in clients.sentences.most_common(20):
        log_line(f"{times} × {sentence}")
    text = _body(subject, given.seconds, outcome, clients, harm, replicas)
    variant = "" if given.model == "built-in" else given.model
    title = "Faults of tiers, at random" + (f": a model with {KINDS[variant]}" if variant else "")
    publish("tier_faults", title, text, given.write, variant)
    wrong = ("wrong", "lost", "errors without a sentence", "broken off by a living server")
    if any(clients.counts[name] for name in wrong) or outcome.wrong or any(one.tracebacks for one in replicas):
        raise SystemExit("; ".join(outcome.wrong) or "answers are wrong or lost, or a server has left a traceback")


def _body(
    subject: Subject, seconds: float, outcome: Outcome, clients: Clients, harm: Harm, replicas: list[Replica]
) -> str:
    totals = sum((one.totals for one in replicas), Counter[str]())
    rows: list[list[object]] = [[f"rounds with: {name}", count] for name, count in sorted(harm.done.items())]
    rows += [[f"files {name}", count] for name, count in sorted(harm.damages.done.items())]
    rows += [[f"answers {name}", clients.counts[name]] for name in ("right", "wrong", "lost")]
    rows += [[name, count] for name, count in sorted(clients.counts.items()) if name not in ("right", "wrong", "lost")]
    rows += [
        [_metric_name(name), f"{count:,}"] for name, count in sorted(totals.items()) if "bytes" not in name and count
    ]
    rows += [["blocks held without a request after a round", len(outcome.wrong)]]
    rows += [["tracebacks in the logs", sum(one.tracebacks for one in replicas)]]
    full = subject.disk * 2**30
    return f"""{seconds:g} s, {outcome.rounds} rounds, {CLIENTS} clients without a pause, two servers with one folder \
of {full / 1e6:.0f} MB, of which at most {outcome.max_bytes / 1e6:.0f} MB were used; blocks as reported by the servers \
that were not killed.

{table(["what", "times"], rows)}"""


def _metric_name(metric: str) -> str:
    name, _, label = metric.removeprefix("inflight_tier_").partition("_total")
    labels = " ".join(re.findall(r'"([^"]*)"', label))
    return f"{name.replace('_', ' ')} {labels}".strip()


if __name__ == "__main__":
    main()
