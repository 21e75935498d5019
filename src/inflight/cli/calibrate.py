"""`inflight calibrate`: measure step times on this machine, for `inflight simulate`."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.declared import takes
from inflight.cli.files import check_writable
from inflight.cli.options import (
    engine_settings,
    measured_engine_options,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.progress import duration, open_engine
from inflight.cli.summary import figure, show
from inflight.cli.verb import Verb
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Bound, SettingsError, setting
from inflight.config.speculation import OFF
from inflight.execution.backends.torch.device import gpu_name
from inflight.simulate.calibrate import CalibrationTarget, calibrate, warnings
from inflight.simulate.fitted import FittedModel
from inflight.simulate.sources import fitted_on_record, fitted_on_result


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """The measurement, or a file instead of it."""

    output: Path | None = setting(None, "Write the step model (JSON) here.", "Calibration", path="file")
    seconds: float = setting(
        150.0,
        "Seconds of measuring, without loading.",
        bound=Bound(10, 3600, "10 to 3600: a shorter time measures too few steps, a longer one adds nothing"),
    )
    record: Path | None = setting(None, "Fit this record instead of measuring.", path="present file")
    vllm_result: Path | None = setting(
        None, "Fit a result of `vllm bench serve --save-detailed` instead.", path="present file"
    )
    as_json: bool = setting(False, "Print the step model as JSON.", flags=("--json",))


@click.command("calibrate", cls=Verb)
@measured_engine_options
@scheduling_options
@takes(asked=CalibrationOptions)
def command(asked: CalibrationOptions, **values: Any) -> int:
    """Measure step times of this machine, on its CPU or a GPU, with the settings of `inflight serve`.

    Run nothing else on the machine meanwhile. The step model goes to --output, for `inflight simulate --step-model`.
    """
    record, vllm_result, output = asked.record, asked.vllm_result, asked.output
    if record is not None and vllm_result is not None:
        raise click.UsageError("--record and --vllm-result both name what is fitted; give one of them.")
    if record is not None or vllm_result is not None:
        _refuse_settings("--record" if record is not None else "--vllm-result")
    check_writable(output, reads=[record, vllm_result])
    if record is not None:
        model = fitted_on_record(record)
    elif vllm_result is not None:
        model = fitted_on_result(vllm_result)
    else:
        model = _measured(values, asked.seconds)
    _report(model)
    if output is not None:
        model.save(output)
        show(f"Written to {output}.")
    if asked.as_json:
        print(json.dumps(asdict(model), indent=1))
    return 0


def _refuse_settings(source: str) -> None:
    """Raise click.UsageError for settings of an engine, which a fit to a file does not start."""
    context = click.get_current_context()
    unused = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in ("record", "vllm_result", "output", "as_json")
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]
    if unused:
        raise click.UsageError(
            f"{source} fits what was measured already, so {', '.join(unused)} would change nothing; leave {source} out "
            "to measure with such settings, or leave them out."
        )


def _measured(values: dict[str, Any], seconds: float) -> FittedModel:
    settings, scheduling = engine_settings(values), _without_drafts(scheduling_settings(values))
    show(f"Measuring takes about {duration(seconds)}, without loading.")
    engine = open_engine(settings, scheduling)
    gc.collect()
    gc.freeze()  # as the server does: objects that live as long as the engine are not collected again and again
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
        return calibrate(target, seconds, show)
    finally:
        gc.unfreeze()  # or the engine would outlive the interpreter
        engine.loop.close()


def _without_drafts(scheduling: SchedulingSettings) -> SchedulingSettings:
    """Turn speculation off: step times are measured, not the acceptance of drafts. Raises SettingsError."""
    if scheduling.draft_source.kind not in ("auto", "off"):
        raise SettingsError(
            f"--speculation {scheduling.draft_source} has no effect on what steps are measured with; leave it out."
        )
    return scheduling.drafting_from(OFF)


def _report(model: FittedModel) -> None:
    provenance = model.provenance
    assert provenance is not None
    figure("machine", f"{provenance.machine}, {provenance.measured}")
    figure("a step", f"{model.step * 1e3:.3g} ms")
    bounds = [0, *model.knots]
    for each, begin in zip(model.token, bounds, strict=True):
        where = f" beyond {begin} tokens" if begin else ""
        figure("  a token", f"{each * 1e3:.3g} ms{where}")
    for name, value, unit in (
        ("a row", model.row, 1),
        ("the output layer, where anything is sampled", model.output_layer, 1),
        ("a sample", model.sample, 1),
        ("a sample beyond the first knot, in addition", model.late_sample, 1),
        ("1,000 positions read by decodes", model.decode_context, 1e3),
        ("1,000,000 query-key pairs of prompts", model.prefill_context, 1e6),
    ):
        show(f"  {name}: {value * unit * 1e3:.3g} ms")
    for name, errors, meaning in (
        ("held out", provenance.held_out, "mean of |modelled / measured - 1| over steps that were not fitted"),
        ("  single", provenance.single, "the same for each step; above, equal steps count once, with their median"),
        ("noise", provenance.noise, "how far equal steps are off their median"),
    ):
        if errors:
            shown = ", ".join(f"{kind} {error:.1%} ({count:,})" for kind, (error, count) in errors.items())
            figure(name, f"{shown}: {meaning}")
    if provenance.noise:
        figure("usual", f"steps take {provenance.usual:.1%} of the mean, which is modelled; slow ones add the rest")
    if provenance.others is not None:
        figure("others", f"used {provenance.others:.1%} of the CPU time meanwhile")
    blocks = provenance.capacity.get("num_blocks")
    if blocks is not None:
        figure("memory", f"{blocks:,} KV blocks of {provenance.capacity['block_size']} tokens")
    for sentence in warnings(model):
        show(f"inflight: {sentence}")
