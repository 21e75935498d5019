"""`inflight calibrate`: what steps take on this machine, as a file for `inflight simulate`."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.files import check_writable
from inflight.cli.options import engine_options, engine_settings, scheduling_options, scheduling_settings
from inflight.cli.progress import duration, open_engine
from inflight.cli.verb import Verb, grouped
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.config.speculation import OFF
from inflight.execution.backends.torch.device import gpu_name
from inflight.simulate.calibrate import CalibrationTarget, calibrate, warnings
from inflight.simulate.fitted import FittedModel
from inflight.simulate.sources import fitted_on_record, fitted_on_result

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("calibrate", cls=Verb)
@engine_options
@scheduling_options
@grouped(
    "Calibration",
    click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the step model (JSON) here."),
    click.option("--seconds", type=float, default=150, show_default=True, help="To measure, loading not counted."),
    click.option("--record", type=_FILE, help="Fit this record instead of measuring."),
    click.option("--vllm-result", type=_FILE, help="Fit a result of `vllm bench serve --save-detailed` instead."),
    click.option("--json", "as_json", is_flag=True, help="Print the step model as JSON."),
)
def command(output: Path | None, seconds: float, record: Path | None, vllm_result: Path | None, **values: Any) -> int:
    """Measure what this machine's steps take, on its CPU or a GPU, with the settings of `inflight serve`.

    Leave the machine to itself meanwhile. The step model goes to --output, for `inflight simulate --step-model`.
    """
    as_json = values.pop("as_json")
    if record is not None and vllm_result is not None:
        raise click.UsageError("--record and --vllm-result both say what is fitted; give one of them.")
    if record is not None or vllm_result is not None:
        _refuse_settings("--record" if record is not None else "--vllm-result")
    if not 10 <= seconds <= 3600:
        raise click.UsageError(
            f"--seconds is {seconds:g}; give 10 to 3600: fewer see too little, more tell nothing new."
        )
    check_writable(output, reads=[record, vllm_result])
    if record is not None:
        model = fitted_on_record(record)
    elif vllm_result is not None:
        model = fitted_on_result(vllm_result)
    else:
        model = _measured(values, seconds)
    _report(model)
    if output is not None:
        model.save(output)
        print(f"Written to {output}.", file=sys.stderr)
    if as_json:
        print(json.dumps(asdict(model), indent=1))
    return 0


def _refuse_settings(source: str) -> None:
    """Of an engine that is not started, where a file is fitted that was measured already."""
    context = click.get_current_context()
    of_no_use = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in ("record", "vllm_result", "output", "as_json")
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if of_no_use:
        raise click.UsageError(
            f"{source} fits what was measured already, so that {', '.join(of_no_use)} would change nothing; leave out "
            f"{source} to measure with such settings, or leave them out."
        )


def _measured(values: dict[str, Any], seconds: float) -> FittedModel:
    settings, scheduling = engine_settings(values), _without_drafts(scheduling_settings(values))
    print(f"Measuring takes about {duration(seconds)}, loading not counted.", file=sys.stderr)
    engine = open_engine(settings, scheduling)
    gc.collect()
    gc.freeze()  # as the server does: what lives as long as the engine is not looked at again and again
    device = str(engine.settings["device"].value)
    try:
        target = CalibrationTarget(
            executor=engine.executor,
            loop=engine.loop,
            budget=int(engine.settings["max_num_batched_tokens"].value),
            settings={name: entry.value for name, entry in engine.settings.items()},
            bytes_per_token=engine.kv_bytes_per_token,
            gpu="" if device == "cpu" else gpu_name(device),
        )
        return calibrate(target, seconds, lambda sentence: print(sentence, file=sys.stderr))
    finally:
        gc.unfreeze()  # or the engine would outlive the interpreter
        engine.loop.close()


def _without_drafts(scheduling: SchedulingSettings) -> SchedulingSettings:
    """What a step takes is measured, not how often drafts are right. Raises SettingsError."""
    if scheduling.draft_source.kind not in ("auto", "off"):
        raise SettingsError(
            f"--speculation {scheduling.draft_source} has no effect on what steps are measured with; leave it out."
        )
    return scheduling.drafting_from(OFF)


def _report(model: FittedModel) -> None:
    provenance = model.provenance
    assert provenance is not None
    print(f"machine      {provenance.machine}, {provenance.measured}", file=sys.stderr)
    print(f"a step       {model.step * 1e3:.3g} ms", file=sys.stderr)
    bounds = [0, *model.knots]
    for each, begin in zip(model.token, bounds, strict=True):
        where = f" beyond {begin} tokens" if begin else ""
        print(f"  a token    {each * 1e3:.3g} ms{where}", file=sys.stderr)
    for name, value, unit in (
        ("a row", model.row, 1),
        ("a sample", model.sample, 1),
        ("1,000 positions read by decodes", model.decode_context, 1e3),
        ("1,000,000 query-key pairs of prompts", model.prefill_context, 1e6),
    ):
        print(f"  {name}: {value * unit * 1e3:.3g} ms", file=sys.stderr)
    for name, errors, meaning in (
        ("held out", provenance.held_out, "mean of |modelled / measured - 1| over steps that were not fitted"),
        ("  single", provenance.single, "the same of each by itself; above, equal ones count once, with their middle"),
        ("noise", provenance.noise, "how far equal steps are off their median"),
    ):
        if errors:
            shown = ", ".join(f"{kind} {error:.1%} ({count:,})" for kind, (error, count) in errors.items())
            print(f"{name:<12} {shown}: {meaning}", file=sys.stderr)
    if provenance.noise:
        print(
            f"usual        steps take {provenance.usual:.1%} of the mean, which is modelled; slow ones add the rest",
            file=sys.stderr,
        )
    if provenance.others is not None:
        print(f"others       had {provenance.others:.1%} of the processors' time meanwhile", file=sys.stderr)
    blocks = provenance.capacity.get("num_blocks")
    if blocks is not None:
        print(f"memory       {blocks:,} KV blocks of {provenance.capacity['block_size']} tokens", file=sys.stderr)
    for sentence in warnings(model):
        print(f"inflight: {sentence}", file=sys.stderr)
