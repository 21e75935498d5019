"""The narrator's sentences about frames, and how many of them it counts."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.live.frames import WORKS, Account, Ended, Frame, RequestInfo, Run, StepPoint
from inflight.live.terminal.narrator import Narrator
from inflight.records.computed import Work

PREFILL, DECODE, RECOMPUTE = (WORKS.index(one) for one in (Work.PREFILL, Work.DECODE, Work.RECOMPUTE))
LONG = RequestInfo(number=1, lane="interactive", prompt_tokens=600)
SHORT = RequestInfo(number=2, lane="interactive", prompt_tokens=30)
WORK = RequestInfo(number=3, lane="batch", prompt_tokens=140)


class Narrated:
    """A narrator, its sentences, and the time that it sees."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[tuple[str, str]]()
        self.narrator = Narrator(lambda kind, text: self.said.append((kind, text)), 9.0, lambda: self.now)

    def frame(
        self,
        *runs: tuple[int, int],
        steps: int = 4,
        requests: Sequence[RequestInfo] = (LONG, SHORT, WORK),
        preempted: Sequence[int] = (),
        ended: Sequence[Ended] = (),
    ) -> None:
        """Take a frame of steps of a second each. runs: sequence, work, over all of them."""
        self.narrator.take(
            Frame(
                number=0,
                start=0.0,
                end=float(steps),
                steps=[StepPoint(at, at + 1.0, 1.0, 0.0, 1, 1, 1, 0, 0, 0) for at in map(float, range(steps))],
                runs=[Run(row, sequence, work, 0.0, float(steps), steps) for row, (sequence, work) in enumerate(runs)],
                requests=list(requests),
                preempted=list(preempted),
                ended=list(ended),
            )
        )


def test_a_prompt_in_chunks_beside_other_requests() -> None:
    narrated = Narrated()
    narrated.frame((1, PREFILL), (2, DECODE), (3, DECODE))
    narrated.frame((1, PREFILL), (2, DECODE), steps=3)
    assert not narrated.said
    narrated.frame((1, DECODE), (2, DECODE), steps=1)
    assert narrated.said == [
        (
            "chunked prefill",
            "A prompt of 600 tokens in the interactive lane was computed in 7 steps, a chunk in each; meanwhile up to "
            "2 other requests got a token in every step.",
        )
    ]


def test_prompts_without_other_requests_short_ones_and_batch_work_are_not_worth_a_sentence() -> None:
    narrated = Narrated()
    narrated.frame((1, PREFILL))
    narrated.frame((1, DECODE), (2, PREFILL), steps=2)
    narrated.frame((1, DECODE), (2, DECODE), (3, PREFILL))
    narrated.frame((1, DECODE), (3, DECODE))
    narrated.frame((1, RECOMPUTE), (2, DECODE))
    assert not narrated.said and not narrated.narrator.seen


def test_a_preemption_names_the_prompt_that_needs_room() -> None:
    narrated = Narrated()
    narrated.frame((3, DECODE), (2, DECODE))
    narrated.frame((1, PREFILL), (2, DECODE), preempted=[3])
    narrated.frame((2, DECODE), preempted=[3])
    ((kind, text),) = narrated.said
    assert kind == "preemption" and narrated.narrator.seen["preemption"] == 2
    assert text.startswith(
        "A request of the batch lane loses its row and its KV blocks to the interactive lane, where a"
    )
    assert "prompt of 600 tokens needs room. It waits again, is recomputed" in text
    narrated.now = 10.0
    narrated.frame((2, DECODE), preempted=[3])
    assert narrated.said[-1][1].endswith("to requests that rank before it and grow: the KV pool is full.")


def test_batch_work_that_waited_and_was_preempted() -> None:
    account = Account(
        queue=904.0, prefill=50.0, decode=900.0, preempted=2500.0, other=0.0, total=4400.0,
        queued_by={"blocks": 800.0, "rows": 104.0}, queued_behind={"interactive": 312.0},
    )  # fmt: skip
    narrated = Narrated()
    narrated.frame(ended=[Ended(WORK, "length", 4.0, 12, account)])
    assert narrated.said == [
        (
            "batch lane",
            "A batch request is done. It waited 904 ms, 312 ms of it because the interactive lane had the KV blocks, "
            "and was out of the batch for 2.5 s after a preemption.",
        )
    ]


def test_one_sentence_of_a_kind_in_a_while_but_all_are_counted() -> None:
    narrated = Narrated()
    for _ in range(3):
        narrated.frame((1, PREFILL), (2, DECODE))
        narrated.frame((1, DECODE), (2, DECODE))
    assert len(narrated.said) == 1 and narrated.narrator.seen["chunked prefill"] == 3
