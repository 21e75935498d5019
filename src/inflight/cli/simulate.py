"""`inflight simulate`: a workload on simulated engines, with the real scheduler, on virtual time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inflight.bench.run import Warmup, measured_part
from inflight.cli.bench_options import load_options, offer_of, warmup_of, workload_options
from inflight.cli.options import config_option, record_option, scheduling_options, scheduling_settings
from inflight.cli.summary import print_summary
from inflight.config import DEFAULT_ROWS, EngineSettings, SettingsError
from inflight.core.plan import Capacity
from inflight.metrics.summary import Summary, Window, summarize
from inflight.scheduling import SchedulingSettings
from inflight.simulate.fitted import FittedModel, NoisyModel
from inflight.simulate.handover import Link
from inflight.simulate.latency import StepModel
from inflight.simulate.routers import ROUTERS
from inflight.simulate.simulation import Pool, Setup, Simulation, best_split, simulate
from inflight.simulate.sources import known_of, read_step_model
from inflight.workload.workload import Workload

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("simulate")
@config_option
@click.option("--step-model", type=_FILE, required=True, help="From `inflight calibrate`, or a record (--record).")
@click.option("--decode-step-model", type=_FILE, help="Of the decode pool; without it the same.")
@click.option("--max-num-seqs", type=int, help="Most sequences running at once; as measured unless given.")
@click.option("--max-num-batched-tokens", type=int, help="Most tokens computed in one step.")
@click.option("--max-model-len", type=int, help="Most tokens of prompt and answer; as measured unless given.")
@click.option("--block-size", type=int, help="Tokens per KV block; as measured unless given.")
@click.option("--num-blocks", type=int, help="KV blocks; as measured unless given.")
@click.option("--no-prefix-caching", is_flag=True, help="Share no prefixes.")
@click.option("--watermark", type=float, default=0.01, show_default=True, help="Share of blocks newcomers leave.")
@scheduling_options
@load_options
@workload_options
@click.option("--replicas", type=int, default=1, show_default=True, help="Engines behind the router.")
@click.option("--router", default="round-robin", show_default=True, help=f"{', '.join(ROUTERS)}.")
@click.option("--prefill-replicas", type=int, help="Engines that compute prompts and first tokens only.")
@click.option("--decode-replicas", type=int, help="Engines that go on from there.")
@click.option("--split-replicas", type=int, help="So many engines in all; the best split into the two is searched.")
@click.option("--transfer-gbps", type=float, help="Gigabits per second from prefill to decode engines.")
@click.option("--transfer-setup-ms", type=float, default=1.0, show_default=True, help="That every transfer takes.")
@click.option("--kv-bytes", type=float, help="Bytes of keys and values per token, for transfers and swap space.")
@click.option("--noise", is_flag=True, help="Steps scatter as the measured ones did.")
@record_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**values: Any) -> int:
    """Answer what a deployment would do, before there is one.

    Engine and scheduling options are those of `inflight serve`; without them the engine is as it was when the step
    model was measured.
    """
    model = read_step_model(values.pop("step_model"))
    path = values.pop("decode_step_model")
    second = model if path is None else read_step_model(path)
    record, as_json, seed = values.pop("record"), values.pop("as_json"), values["seed"]
    scheduling, warmup = scheduling_settings(values), warmup_of(values["warmup"])
    first = _pool(model, values, scheduling, seed)
    workload = replace(offer_of(values), max_model_len=first.capacity.max_model_len).workload()
    setup = _setup(values, first, _pool(second, values, scheduling, seed + 1), model, seed)
    for note in (f"Workload: {workload.name}.", *workload.notes, f"Step model: {model.name}."):
        print(note, file=sys.stderr)
    if values["split_replicas"] is not None:
        return _search(workload, setup, values["split_replicas"], as_json, warmup)
    run = simulate(workload, setup, record)
    summary, why = _summary(run, warmup)
    print(f"Measured: {why}.", file=sys.stderr)
    _tell(run, summary)
    if as_json:
        print(json.dumps(_result(run, summary, workload, model), indent=1))
    return 0


def _summary(run: Simulation, warmup: Warmup) -> tuple[Summary, str]:
    """Of the part that `inflight bench` would measure, too; and which it is. Whether latency grew, the time in which
    requests were sent tells: of a burst that is drained, the whole run would not show it."""
    sent = [one for one in run.observations if one.sent is not None]
    window, why = measured_part(sent, warmup)
    summary, last = summarize(sent, window), max(one.intended for one in sent)
    if last <= window.start:
        return summary, why
    sending = summarize(sent, Window(window.start, last))
    return replace(summary, ttft_trend=sending.ttft_trend, offered_per_s=sending.offered_per_s), why


def _pool(model: FittedModel, values: dict[str, Any], scheduling: SchedulingSettings, seed: int) -> Pool:
    """An engine like the measured one, but for what is given."""
    capacity = _capacity(model, values, scheduling)
    settings = EngineSettings(
        max_num_seqs=capacity.max_rows,
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_model_len=capacity.max_model_len,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=not values["no_prefix_caching"],
        watermark=values["watermark"],
        seed=seed,
    )
    models: Callable[[int], StepModel] = lambda number: model  # noqa: E731  # the other choice is one too
    if values["noise"]:
        models = lambda number: NoisyModel(model, seed + 7919 * number)  # noqa: E731
    return Pool(capacity, settings, scheduling, models, values["replicas"], values["router"])


def _capacity(model: FittedModel, values: dict[str, Any], scheduling: SchedulingSettings) -> Capacity:
    known = known_of(model)
    block_size = values["block_size"] or known.block_size or 16
    num_blocks = values["num_blocks"]
    if num_blocks is None and known.num_blocks is not None and known.block_size is not None:
        num_blocks = known.num_blocks * known.block_size // block_size
    length = values["max_model_len"] or known.max_model_len
    if num_blocks is None or length is None:
        missing = "--num-blocks" if num_blocks is None else "--max-model-len"
        raise click.UsageError(f"The step model does not say how large the measured engine was; give {missing}.")
    host_blocks = 0
    if scheduling.swap_space is not None:
        bytes_per_block = _kv_bytes(model, values, "--swap-space") * block_size
        host_blocks = int(scheduling.swap_space * 2**30 / bytes_per_block)
    return Capacity(
        num_blocks=num_blocks,
        block_size=block_size,
        max_rows=values["max_num_seqs"] or known.max_rows or DEFAULT_ROWS,
        max_model_len=length,
        vocab_size=known.vocab_size or 32_000,
        host_blocks=host_blocks,
        copy_seconds=known.copy_seconds if host_blocks else 0.0,
    )


def _kv_bytes(model: FittedModel, values: dict[str, Any], option: str) -> float:
    found = values["kv_bytes"] or known_of(model).bytes_per_token
    if found is None:
        raise click.UsageError(f"{option} needs the bytes of a token, which the step model lacks; give --kv-bytes.")
    return float(found)


def _setup(values: dict[str, Any], first: Pool, second: Pool, model: FittedModel, seed: int) -> Setup:
    content_seed = seed if values["prompt_seed"] is None else values["prompt_seed"]
    prefill, decode, split = (values[f"{name}_replicas"] for name in ("prefill", "decode", "split"))
    if values["replicas"] < 1:
        raise click.UsageError(f"--replicas is {values['replicas']}; give a number from 1.")
    if prefill is None and decode is None and split is None:
        return Setup(first, seed=seed, content_seed=content_seed)
    if split is not None and (prefill is not None or decode is not None or split < 2):
        raise click.UsageError("--split-replicas searches the split of at least 2 engines; give it alone.")
    if split is None and (prefill is None or decode is None or min(prefill, decode) < 1):
        raise click.UsageError("--prefill-replicas and --decode-replicas go together, at least 1 each.")
    if values["transfer_gbps"] is None or not values["transfer_gbps"] > 0:
        raise click.UsageError("Keys and values must move between the pools; give --transfer-gbps, such as 100.")
    link = Link(_kv_bytes(model, values, "--transfer-gbps"), values["transfer_gbps"], values["transfer_setup_ms"] / 1e3)
    sized = [
        Pool(pool.capacity, pool.settings, pool.scheduling, pool.model, number or 1, pool.router)
        for pool, number in ((first, prefill), (second, decode))
    ]
    return Setup(sized[0], sized[1], link, seed, content_seed)


def _tell(run: Simulation, summary: Summary) -> None:
    print_summary(summary, run.preemptions)
    if any(one.targets for one in run.observations):
        print(
            f"goodput      {summary.goodput:,.2f} requests/s met all targets, {summary.attainment:.1%} of the offered",
            file=sys.stderr,
        )
    if len(run.replicas) > 1:
        end = max(one.ended for one in run.observations)
        busy = [one.busy / end for one in run.replicas]
        print(f"replicas     busy {', '.join(f'{share:.0%}' for share in busy)}", file=sys.stderr)
    for sentence, steps in run.extrapolated.items():
        print(f"extrapolated {steps:,} of {run.steps:,} steps. {sentence}", file=sys.stderr)


def _search(workload: Workload, setup: Setup, total: int, as_json: bool, warmup: Warmup) -> int:
    if not any(entry.targets for entry in workload.entries):
        raise SettingsError("The best split is the one with the highest goodput, which needs targets; give --slo.")
    found = best_split(workload, setup, total, lambda run: _summary(run, warmup)[0].goodput)
    print("prefill  decode  goodput, requests/s  attainment", file=sys.stderr)
    for prefill, decode, run, goodput in found:
        print(
            f"{prefill:>7}  {decode:>6}  {goodput:>19,.2f}  {_summary(run, warmup)[0].attainment:>10.1%}",
            file=sys.stderr,
        )
    if as_json:
        keys = ("prefill_replicas", "decode_replicas", "goodput")
        print(json.dumps([dict(zip(keys, (one[0], one[1], one[3]), strict=True)) for one in found], indent=1))
    return 0


def _result(run: Simulation, summary: Summary, workload: Workload, model: FittedModel) -> dict[str, Any]:
    return {
        "kind": "simulation",
        "workload": workload.name,
        "notes": list(workload.notes),
        "step_model": model.name,
        "summary": summary.to_json(),
        "preemptions": run.preemptions,
        "replicas": [
            {"steps": one.steps, "busy_seconds": one.busy, "preemptions": one.last.preemptions} for one in run.replicas
        ],
        "extrapolated": run.extrapolated,
    }
