"""`inflight plan`: how many of which GPUs, under which settings, for this traffic and these SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from inflight.cli.demand import DemandOptions, demand_of, demand_options
from inflight.cli.drafts import draft_options, drafts_asked_about
from inflight.cli.files import check_writable
from inflight.cli.layouts import layout_options, layouts_of
from inflight.cli.machines import longest_of, machine_options, machines_of, refuse
from inflight.cli.options import options_of
from inflight.cli.progress import show
from inflight.cli.verb import Verb, grouped
from inflight.counted import counted
from inflight.metrics.slo import parse_slos
from inflight.planning.engine_config import configuration
from inflight.planning.plan import Plan, as_text, plan
from inflight.planning.proposal import Overrides
from inflight.planning.result import plan_result
from inflight.planning.sizing import Question
from inflight.records.json_text import json_text


@click.command("plan", cls=Verb)
@machine_options
@demand_options
@grouped(
    "Settings",
    click.option("--strategy", default="chunked", show_default=True, help="As of `inflight serve`."),
    click.option("--policy", default="fcfs", show_default=True, help="As of `inflight serve`."),
    click.option("--max-num-seqs", type=int, help="Fix it instead of having it chosen."),
    click.option("--max-num-batched-tokens", type=int, help="Fix it instead of having it chosen."),
    click.option("--compare-strategies", is_flag=True, help="Also find what each batching strategy would need."),
)
@layout_options
@draft_options
@click.option("--write-config", type=click.Path(dir_okay=False, path_type=Path), help="Write the settings here (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
def command(**values: Any) -> int:
    """Size a deployment: replicas, settings, latencies and cost, with reasons, by simulating the engine's own
    scheduler.

    inflight plan --model llama-3-70b --hardware a100-80 --rate 500 --input-tokens lognormal:1020:4142
    --output-tokens lognormal:129:601 --slo "ttft=1000(p99)"
    """
    if values["step_model"] is not None:
        refuse(values, ("model", "family"), "--hardware", "--step-model")
    slos = parse_slos(values["slo"])
    check_writable(values["write_config"], reads=[values["trace"], values["step_model"], values["hardware_file"]])
    demand = demand_of(options_of(DemandOptions, values), longest_of(values))
    overrides = Overrides(
        strategy=values["strategy"],
        policy=values["policy"],
        max_num_seqs=values["max_num_seqs"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
    )
    layouts = layouts_of(values)
    machines = machines_of(values, demand)
    drafts = drafts_asked_about(values, values["seed"])
    question = Question(
        machines=machines,
        demand=demand,
        slos=slos,
        overrides=overrides,
        seed=values["seed"],
        drafts=drafts,
        layouts=layouts,
    )
    answer = plan(question, strategies=values["compare_strategies"], progress=show)
    print(json_text(to_builtins(plan_result(answer))) if values["as_json"] else as_text(answer))
    if isinstance(answer, Plan) and values["write_config"] is not None:
        about = (f"{counted(answer.replicas, 'replica')} of {answer.chosen.machine.name}, by `inflight plan`.",)
        values["write_config"].write_text(configuration(answer.config.options(), about), encoding="utf-8")
    return 0 if isinstance(answer, Plan) else 1
