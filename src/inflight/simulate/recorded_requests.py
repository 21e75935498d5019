"""The requests of a record, asked again: with answers that end where they ended.

Knows lines of requests; nothing of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.adapter import Adapter
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import NO_SAMPLING, InvalidSampling, PoolingParams, SamplingParams
from inflight.records.schema import RecordError, RequestRecord


class Recall:
    """Stop texts that end each sample after as many tokens as it had in the record."""

    def __init__(self, requests: Sequence[RequestRecord], reasons: tuple[str, ...] = ("stop",)):
        """reasons: samples that ended for one of these are ended; others end by themselves, as they did."""
        self._lengths = {
            record["request_id"]: iter(
                [
                    len(sample["token_ids"]) if sample["finish_reason"] in reasons else None
                    for sample in record["samples"]
                ]
            )
            for record in requests
        }

    def __call__(self, of: Request) -> RecalledEnd:
        return RecalledEnd(next(self._lengths[of.request_id]))  # samples are made in their order


class RecalledEnd:
    def __init__(self, after: int | None):
        self._after = after
        self._tokens = 0

    def push(self, token_id: int) -> str | None:
        self._tokens += 1
        return "recorded" if self._tokens == self._after else None


def rebuilt(record: RequestRecord) -> Request:
    """The request of a record. Its own stop rules make room for the record's word on where it stopped. Raises
    RecordError."""
    params = {**record["params"], "stop": ("recorded",), "stop_token_ids": (), "min_tokens": 0, "ignore_eos": True}
    pooling, adapter = record.get("pooling"), record.get("adapter")
    try:
        asked = SamplingParams(**params) if pooling is None else NO_SAMPLING
        pooled = None if pooling is None else PoolingParams(**pooling)
    except (TypeError, InvalidSampling) as error:
        raise RecordError(f"The request {record['request_id']!r} cannot be asked again: {error}") from None
    if asked.n != len(record["samples"]):
        raise RecordError(
            f"The request {record['request_id']!r} asks for {asked.n} samples, but the record has "
            f"{len(record['samples'])}; record the run again."
        )
    return Request(
        request_id=record["request_id"],
        prompt_token_ids=tuple(record["prompt_token_ids"]),
        params=asked,
        seed=record["seed"],
        arrival=record["arrival"],
        lane=record["lane"],
        tenant=record["tenant"],
        priority=record["priority"],
        slo=SLO(**record["slo"]),
        cache_salt=record["cache_salt"],
        handed_tokens=record.get("handed_tokens", 0),
        session=record.get("session", ""),
        call_marks=tuple(map(tuple, record.get("call_marks", ()))),
        forced_output_tokens=record.get("forced_output_tokens"),
        pooling=pooled,
        second_text_at=record.get("second_text_at"),
        adapter=None if adapter is None else Adapter(adapter["name"], "", adapter["number"]),
    )
