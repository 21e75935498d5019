"""An engine that computes nothing, to be run as a process: every request gets a token in every step.

Job settings: `seconds` a step takes; `tokens_over`: how many each request gets beyond what it asked; `load_error`;
`dies_after` as many requests; `log`: a name, and the file that it and the length of every prompt are added to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from benchmarks.peers.stepping import Job, serve


class FakeEngine:
    version = "1.0"
    settings = "of no use"

    def __init__(self, job: Job):
        print("libraries print to standard output as they like")
        given: dict[str, Any] = job.settings
        if "load_error" in given:
            raise RuntimeError(given["load_error"])
        self._seconds = given.get("seconds", 0.0)
        self._over = given.get("tokens_over", 0)
        self._dies_after = given.get("dies_after", 10**9)
        self._log = given.get("log")
        self._left: dict[int, int] = {}

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        if number >= self._dies_after:
            raise RuntimeError("out of luck")
        if self._log:
            with open(self._log[1], "a", encoding="utf-8") as file:
                file.write(f"{self._log[0]} {len(prompt)}\n")
        self._left[number] = output_tokens + self._over

    def step(self) -> Iterable[tuple[int, int]]:
        time.sleep(self._seconds)
        for number in list(self._left):
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number]
            yield number, 1


if __name__ == "__main__":
    serve(FakeEngine)
