"""When each sequence was computed and when its tokens came: from chunks that sampled.

Knows sequences by number; which request they belong to, the request's own line says when it has ended.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from inflight.records.schema import StepRecord


@dataclass(slots=True)
class SequenceTimeline:
    """joined: when it got a row, each time. left: when it lost it, each time; one fewer while it still has it.
    token_times: when each of its tokens was there, in seconds. prompt_tokens: as its first row said."""

    prompt_tokens: int
    joined: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    token_times: array[float] = field(default_factory=lambda: array("d"))
    failed: bool = False

    @property
    def preemptions(self) -> int:
        """Times that it came back to a row."""
        return len(self.joined) - 1


class SequenceHistory:
    def __init__(self) -> None:
        self.timelines: dict[int, SequenceTimeline] = {}
        self._rows: dict[int, SequenceTimeline] = {}

    def step(self, record: StepRecord, began: float, before: float) -> None:
        for row in record["freed_rows"]:
            self._rows.pop(row).left.append(before)
        prompts = {new["row"]: new["prompt_tokens"] for new in record["new_rows"]}
        broken = "error" in record
        for chunk in record["chunks"]:
            row = chunk["row"]
            if row in prompts:
                timeline = self.timelines.setdefault(chunk["sequence"], SequenceTimeline(prompts[row]))
                timeline.joined.append(began)
                self._rows[row] = timeline
            if broken:
                self._rows[row].failed = True
            elif chunk["sample"]:
                self._rows[row].token_times.append(record["committed"])
