"""Figures by a judge's own definitions, made of what passed between it and the server.

A ratio of 1 between a judge's figure and this one says that the definition explains how it differs from ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.judges.judge import Figures, Latency
from benchmarks.judges.wire import Frame, Passed
from inflight.metrics.definitions import quantile


def one_a_frame(frame: Frame) -> int:
    return int(frame.has_choice)


def one_a_text(frame: Frame) -> int:
    return int(bool(frame.text))


def of_single_values(ordered: Sequence[float], share: float) -> float:
    """Return a quantile that is one of the values."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@dataclass(frozen=True, slots=True)
class Definition:
    """How a judge makes figures of frames.

    Attributes:
        tokens: How many tokens a frame is to its ITL, each a gap; 0: the frame is passed over.
        to_the_end: Whether TPOT ends with the stream, not with the last frame that counts.
        quantile: Of sorted values.
        began: When a request began, by its id, where it does not with the first byte of the request; s.
        window: How long its rates are of, where not from the first request to the last answer; s.
        left_out: Requests that its requests/s leave out.
    """

    tokens: Callable[[Frame], int] = one_a_text
    to_the_end: bool = False
    quantile: Callable[[Sequence[float], float], float] = quantile
    began: Mapping[str, float] = field(default_factory=dict)
    window: float | None = None
    left_out: int = 0

    def figures(self, passed: Sequence[Passed]) -> Figures:
        """Return the figures of requests that passed."""
        done = [one for one in passed if one.observation.outcome == "completed"]
        begins = [self.began.get(one.observation.request_id, one.observation.intended) for one in passed]
        seconds = self.window or max(one.observation.ended for one in passed) - min(begins)
        ttfts: list[float] = []
        tpots: list[float] = []
        gaps: list[float] = []
        for one in done:
            moments = [frame.at for frame in one.frames for _ in range(self.tokens(frame))]
            if not moments:
                continue
            seen = one.observation
            ttfts.append(moments[0] - self.began.get(seen.request_id, seen.intended))
            gaps += [later - before for before, later in itertools.pairwise(moments)]
            if seen.output_tokens > 1:
                last = seen.ended if self.to_the_end else moments[-1]
                tpots.append((last - moments[0]) / (seen.output_tokens - 1))
        tokens = sum(one.observation.output_tokens for one in done)
        return Figures(
            requests=len(done),
            failed=len(passed) - len(done),
            output_tokens=tokens,
            input_tokens=sum(one.observation.prompt_tokens for one in done),
            requests_per_s=(len(done) - self.left_out) / seconds,
            output_tokens_per_s=tokens / seconds,
            ttft=self._latency(ttfts),
            tpot=self._latency(tpots),
            itl=self._latency(gaps),
        )

    def _latency(self, values: Sequence[float]) -> Latency:
        if not values:
            return Latency()
        ordered = sorted(values)
        return Latency(math.fsum(ordered) / len(ordered), *(self.quantile(ordered, share) for share in (0.5, 0.99)))
