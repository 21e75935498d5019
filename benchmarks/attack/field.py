"""Where it happens: a server with honest clients, a clock and a view of its memory, and attackers that come and go.

Owns all processes: whatever happens, they end with it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from benchmarks.attack import attacker, honest
from benchmarks.attack.jobs import cancel_jobs
from benchmarks.attack.memory import Memory, back_after
from benchmarks.attack.sightings import Sightings, Window
from benchmarks.attack.target import HOSTILE_KEYS, arguments, limit_memory
from benchmarks.attack.visit import Tally
from benchmarks.attack.waits import NEAR_MB, Outcome
from benchmarks.served import Server

WATCHED = 12.0  # seconds after an attack in which memory is to come back
_SETTLED = 1.0  # seconds after the clients' start that count for nothing
_LATE = 60.0  # seconds that attackers may take beyond their time
_REPLACED = "preprocessing process is gone"  # the log's words when the helper was killed


@dataclass(frozen=True, slots=True)
class Raid:
    """One attack or a mixture, done. window: until memory was back, or the watch ended."""

    window: Window
    ended: float
    rest_mb: float
    tallies: dict[str, Tally]


class Field:
    """Use it in `with`. more: arguments of the server."""

    def __init__(self, folder: Path, with_keys: bool, plan: honest.Plan | None = None, more: Sequence[str] = ()):
        """folder: of this field alone; the model is one above."""
        self._keys = HOSTILE_KEYS if with_keys else []
        self._exit = ExitStack()
        try:
            self.server = self._exit.enter_context(Server(*arguments(folder, with_keys), *more))
            limit_memory(self.server)
            self.memory = Memory(self.server.process.pid)
            self._exit.callback(self.memory.stop)
            self.sightings = self._clients(folder, plan)
        except BaseException:
            self._exit.close()
            raise

    def __enter__(self) -> Field:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def _clients(self, folder: Path, plan: honest.Plan | None) -> Sightings:
        files = folder / "health.jsonl", folder / "honest.jsonl"
        for file in files:
            file.unlink(missing_ok=True)
        given = replace(plan or honest.Plan(), port=self.server.port, file=str(files[1]))
        given = given if self._keys else replace(given, keys=())
        clients = [
            self._exit.enter_context(
                _child("health", str(self.server.port), str(files[0]), str(self.server.api_processes()[0]))
            ),
            self._exit.enter_context(_child("honest", said=given)),
        ]
        sightings = Sightings(*files)
        sightings.wait_until_ready(clients)
        time.sleep(_SETTLED)
        return sightings

    def quiet(self, seconds: float) -> Window:
        began = time.perf_counter()
        time.sleep(seconds)
        return began, time.perf_counter()

    def raid(self, names: Sequence[str], seconds: float, seed: int, tenants: int = 4, **more: Any) -> Raid:
        """Attack for so long, then wait until memory is back and /health answers, for a while at most.

        tenants: whose keys the attackers have. more: fields of the attackers' plan.
        """
        given = attacker.Plan(self.server.port, self._keys[:tenants], list(names), seconds, seed)
        with _child("attacker", said=replace(given, **more), answers=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready, or has ended
            rest, began = self.rest_mb, time.perf_counter()
            try:
                process.wait(seconds + _LATE)  # its last output is short
                answers = process.stdout.read()
            except subprocess.TimeoutExpired:
                answers = b""
        cancel_jobs(self.server.port, self._keys)
        ended = time.perf_counter()
        tallies = msgspec.json.decode(answers, type=dict[str, Tally]) if answers else {}
        while time.perf_counter() < ended + WATCHED and self.server.process.poll() is None:
            time.sleep(0.1)
            if self.memory.now <= rest + NEAR_MB and self.sightings.last_answer() > ended:
                break
        return Raid((began, time.perf_counter()), ended, rest, tallies)

    @property
    def rest_mb(self) -> float:
        """Return the median of the server's memory over the last second."""
        now = time.perf_counter()
        values = sorted(self.memory.between(now - 1.0, now))
        return values[len(values) // 2] if values else self.memory.now

    @property
    def died(self) -> str:
        code = self.server.process.poll()
        if code is not None:
            return f"the server ended with code {code}"
        return "the process that reads bodies was killed" if _REPLACED in self.server.lines() else ""

    def outcome(self, raids: Sequence[Raid], quiet: Sequence[Window]) -> Outcome:
        """Return the figures of several raids together."""
        windows = [raid.window for raid in raids]
        values = [(raid, self.memory.between(*raid.window)) for raid in raids]
        backs = [self._back(raid) for raid in raids]
        late = [one for one in backs if one is None]
        tallies = [tally for raid in raids for tally in raid.tallies.values()]
        return Outcome(
            quiet=self.sightings.within(*quiet),
            attacked=self.sightings.within(*windows),
            peak_mb=max(max(memory, default=raid.rest_mb) - raid.rest_mb for raid, memory in values),
            back=None if late else max(one for one in backs if one is not None),
            tree_mb=max(max(memory, default=0.0) for _, memory in values),
            died=self.died,
            answers=sum((Counter(tally.answers) for tally in tallies), Counter()),
            visits=sum(tally.visits for tally in tallies),
            sent_mb=sum(tally.sent for tally in tallies) / 1e6,
        )

    def _back(self, raid: Raid) -> float | None:
        begin, end = raid.window
        times = [at for at in list(self.memory.times) if begin <= at <= end]
        return back_after(times, self.memory.between(begin, end), raid.ended, raid.rest_mb + NEAR_MB)


@contextmanager
def _child(
    module: str, *given: str, said: attacker.Plan | honest.Plan | None = None, answers: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this package, which ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.attack.{module}", *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
    )
    try:
        assert process.stdin is not None
        if said is not None:
            process.stdin.write(msgspec.json.encode(said) + b"\n")
            process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()  # closes the pipes too
