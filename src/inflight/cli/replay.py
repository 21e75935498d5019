"""`inflight replay`: run a record again, report the first difference in its plans, and the errors of a step model."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path

import click

from inflight.cli.summary import figure
from inflight.cli.verb import Verb
from inflight.config.setting import SettingsError
from inflight.counted import counted
from inflight.records.json_text import json_text
from inflight.records.schema import RecordError, of_kind, read_records
from inflight.simulate.compare import Comparison, compare
from inflight.simulate.replay import Outcome, replay
from inflight.simulate.sources import read_step_model

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("replay", cls=Verb)
@click.argument("record", type=_FILE)
@click.option("--step-model", type=_FILE, help="Compare its seconds with the record's (from `inflight calibrate`).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(record: Path, step_model: Path | None, as_json: bool) -> int:
    """Run a record (--record) again on a fresh scheduler, at its own times.

    Every plan must be the recorded one: chunks, rows, blocks, preemptions, moves. Ends with 1 where one is not. With
    --step-model the same requests run once more, on the model's seconds, and both are shown side by side.
    """
    records = list(read_records(record))
    if not of_kind(records, "step"):
        raise RecordError(
            f"{record} has a header and {len(records) - 1:,} more lines, but no step: nothing was computed, so there "
            "is nothing to repeat. Record a run that answers a request."
        )
    try:
        again, outcome = replay(records)
    except (RecordError, SettingsError) as error:
        raise RecordError(f"{record}: {error}") from None
    _report(outcome)
    result = asdict(outcome)
    if outcome.difference is None and step_model is not None:
        comparison = compare(records, again, read_step_model(step_model))
        _report_errors(comparison)
        result |= {
            "step_errors": comparison.step_errors,
            "recorded": comparison.recorded.to_json(),
            "modelled": comparison.modelled.to_json(),
        }
    if as_json:
        print(json_text(result, indent=1))
    return 0 if outcome.difference is None else 1


def _report(outcome: Outcome) -> None:
    if outcome.difference is not None:
        figure("different", f"after {outcome.steps:,} of {outcome.recorded_steps:,} steps. {outcome.difference}")
        return
    figure(
        "identical",
        f"{counted(outcome.steps, 'plan')}, {counted(outcome.requests, 'request')}, "
        f"{counted(outcome.preemptions, 'preemption')}, "
        f"{outcome.prefix_hits:,} cached prompt tokens, {outcome.moved_blocks:,} moved blocks",
    )


def _report_errors(comparison: Comparison) -> None:
    parts = [f"{kind} {error:.1%} ({count:,})" for kind, (error, count) in comparison.step_errors.items()]
    figure("step error", f"{', '.join(parts)}: mean of |modelled / recorded - 1|")
    recorded, modelled = comparison.recorded, comparison.modelled
    figure("", f"{'recorded':>12} {'modelled':>12} {'error':>8}")
    rows = [
        ("requests/s", recorded.requests_per_s, modelled.requests_per_s),
        ("tokens/s", recorded.output_tokens_per_s, modelled.output_tokens_per_s),
    ]
    for name, share in itertools.product(("ttft", "tpot", "e2e"), ("p50", "p99")):
        one, other = (getattr(getattr(summary, name), share) for summary in (recorded, modelled))
        if one is not None and other is not None:
            rows.append((f"{name.upper()} {share}, ms", one * 1e3, other * 1e3))
    for name, one, other in rows:
        figure(name, f"{one:>12,.2f} {other:>12,.2f} {f'{other / one - 1:+8.1%}' if one else ''}")
    figure("preemptions", f"{comparison.preemptions[0]:>12,} {comparison.preemptions[1]:>12,}")
    for sentence, steps in comparison.extrapolated.items():
        figure("extrapolated", f"{steps:,} steps. {sentence}")
