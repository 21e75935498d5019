"""A result file back to the observations that it was made of, where it kept them (`--save-requests`).

Knows the record's rows; figures are then computed anew, by `inflight.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import Window
from inflight.records.result import BenchRecord, RequestRow, ResultError, bench_records, read_result


@dataclass(frozen=True, slots=True)
class Kept:
    """One run of a file: its record, its window, and its observations; those are empty where they were not kept."""

    record: BenchRecord
    window: Window
    observations: tuple[Observation, ...]


def read_runs(path: Path) -> list[Kept]:
    """The runs of a file in their order. Raises ResultError."""
    record = read_result(path)
    try:
        return [_kept(one) for one in bench_records(record)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultError(
            f"{path} lacks what a result of its version has ({error!r}); it may have been edited."
        ) from None


def _kept(record: BenchRecord) -> Kept:
    window = Window(record["window"]["start_s"], record["window"]["end_s"])
    return Kept(record, window, tuple(_observation(row) for row in record.get("requests", ())))


def _observation(row: RequestRow) -> Observation:
    return Observation(
        request_id=row["id"],
        intended=row["intended_s"],
        ended=row["ended_s"],
        outcome=row["outcome"],  # type: ignore[arg-type]
        sent=row["sent_s"],
        first_token=row["first_token_s"],
        last_token=row["last_token_s"],
        token_times=row["token_times_s"],
        prompt_tokens=row["prompt_tokens"],
        cached_tokens=row["cached_tokens"],
        output_tokens=row["output_tokens"],
        longest_output=row["output_tokens"],
        traffic=row["traffic"],
        lane=row["lane"],
        tenant=row["tenant"],
        targets=Targets(**row["targets_s"]),
        status=row["status"],
        error=row["error"],
    )
