"""Plans on their way to workers: what arrives is what was sent."""

from __future__ import annotations

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, Transfer, Transferred
from inflight.core.types.sampling import PoolingParams, SamplingParams
from inflight.execution.parallel.messages import (
    Begin,
    Computed,
    Copied,
    Failed,
    Step,
    decode_from_worker,
    decode_to_worker,
    encode,
)


def test_plans_arrive_as_they_were_sent() -> None:
    params = SamplingParams(logit_bias={3: -1.5}, stop=("a",), bad_words=("b",), allowed_token_ids=(1, 2), logprobs=3)
    new = NewRequest(
        1, (5, 6, 7), 3, params, 2**63 + 5, 2, (9,), ((1, 2), (3,)), PoolingParams(normalize=False), (4,), 6
    )
    chunks = (
        Chunk(7, 1, 0, 3, (4, 5), 1, range(1, 3), (8, 9), True, ((1, 2), ()), ((16, 2),)),
        Chunk(8, 2, 31, 1, (), 1),
    )
    plan = BatchPlan(4, chunks, (new,), (3,), (1, 2), (Transfer(1, "store", "host", (1, 2), (0, 3)),))
    assert decode_to_worker(encode(Step(plan))) == Step(plan)


def test_other_messages_arrive_as_they_were_sent() -> None:
    begin = Begin(Capacity(10, 16, 4, 100, 300, windows=(0, 32), state_snapshots=2))
    assert decode_to_worker(encode(begin)) == begin
    for message in (
        Computed(3, (1, 2)),
        Copied((Transferred(4), Transferred(5, "It broke."))),
        Failed("It broke.", True),
    ):
        assert decode_from_worker(encode(message)) == message
