"""Options that several verbs share, as decorators, and `--config FILE.toml`, which holds them by their long names.

Knows names, types and help texts; what the values may be, `EngineSettings` and `SamplingParams` know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from inflight.cli.verb import Decorator, grouped
from inflight.config.engine import EngineSettings
from inflight.config.presets import preset
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.config.setting import SettingsError, option
from inflight.config.speculation import DEFAULT
from inflight.core.estimation.output_length import PREDICTORS
from inflight.core.options import Option
from inflight.core.policies.registry import POLICIES
from inflight.core.strategies.registry import OPTIONS, STRATEGIES
from inflight.core.types.sampling import InvalidSampling, SamplingParams

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LANES = "inflight.lanes"  # key in click's context

Options = TypeVar("Options", bound="DataclassInstance")


def options_of(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Those of a verb's arguments that are fields of a dataclass, as one of it: from there on names and types are
    checked."""
    return kind(**{item.name: values[item.name] for item in fields(kind)})


def _load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    import tomllib  # here, as few starts have such a file

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {error}.") from None
    where = f"--config {path}"
    ctx.meta[LANES] = lanes_of(where, values)
    ctx.default_map = {**(ctx.default_map or {}), **defaults_of(where, values, ctx.command.params)}


def defaults_of(where: str, values: Mapping[str, Any], parameters: Iterable[click.Parameter]) -> dict[str, Any]:
    """What a file says of a verb's options, by their names in click. where: the file, for sentences. Raises
    click.UsageError."""
    names = {name.lstrip("-"): parameter for parameter in parameters for name in parameter.opts}
    defaults = {}
    for key, value in values.items():
        parameter = names.get(key)
        if not isinstance(parameter, click.Option) or parameter.name == "config":
            known = sorted(name for name in names if name not in ("config", "prompt"))
            import difflib  # here, as it is for mistakes only

            near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}."
            raise click.UsageError(f"{where} has the key {key!r}, which is no option; {hint}")
        try:
            defaults[str(parameter.name)] = _as_typed(parameter, value)
        except ValueError as error:
            raise click.UsageError(f"{where}: {key} = {json.dumps(value, default=str)}; {error}.") from None
    return defaults


def _take_preset(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is None:
        return
    chosen = preset(name)
    names = {opt.lstrip("-"): parameter.name for parameter in ctx.command.params for opt in parameter.opts}
    print(f"Preset {name}: {chosen.purpose}.", file=sys.stderr)

    @cache
    def values() -> dict[str, str]:
        """Asked for when what computes is known, whatever the order of options."""
        found = chosen.on(_on_gpu(ctx))
        for key, (value, why) in found.items():
            print(f"  --{key} {value}: {why}", file=sys.stderr)
        return {key: str(value) for key, (value, _) in found.items()}

    def value_of(key: str) -> Callable[[], str]:
        return lambda: values()[key]

    ctx.default_map = {**{names[key]: value_of(key) for key in chosen.values}, **(ctx.default_map or {})}


def _on_gpu(ctx: click.Context) -> bool:
    """Whether steps are a GPU's: that of the engine, or of what is simulated. What was not given has no type that an
    option has while others are read."""
    if isinstance(measured := ctx.params.get("step_model"), Path):
        from inflight.simulate.sources import read_step_model

        return read_step_model(measured).device.startswith("cuda")
    if "device" not in ctx.params:
        return isinstance(ctx.params.get("hardware"), str)
    from inflight.build.limits import resolve_device

    asked = EngineSettings(device=ctx.params["device"])
    return resolve_device(asked).value != "cpu"


def lanes_of(where: str, values: dict[str, Any]) -> dict[str, Any]:
    """`[lanes.NAME]` tables, taken out of a file's values. Raises click.UsageError."""
    lanes = values.pop("lanes", {})
    if not isinstance(lanes, dict) or not all(isinstance(lane, dict) for lane in lanes.values()):
        raise click.UsageError(f"{where}: write lanes as tables, [lanes.NAME] each.")
    return {name: {key.replace("-", "_"): value for key, value in lane.items()} for name, lane in lanes.items()}


def _as_typed(parameter: click.Option, value: Any) -> Any:
    """A TOML value as it would stand on the command line, so that both are checked alike."""
    if parameter.is_flag:
        if not isinstance(value, bool):
            raise ValueError("give true or false")
        return not value if parameter.flag_value is False else value
    if parameter.multiple:
        return [_text(one) for one in (value if isinstance(value, list) else [value])]
    return json.dumps(value) if parameter.name == "logit_bias" and isinstance(value, dict) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("give one number or text")
    return str(value)


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_load_config,
    is_eager=True,
    expose_value=False,
    help="TOML file that holds any of these options by its long name; the command line wins.",
)


def _refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Of options that other engines have: known by name, so that whoever gives them learns what there is instead."""
    if value is not None:
        raise click.UsageError(
            f"{parameter.opts[0]}: there is neither pipeline nor expert parallelism here, of layers or experts that "
            "lie on different GPUs; leave it out, and give --tensor-parallel-size N, which shares every layer and "
            "every expert among N GPUs of a machine."
        )


_pipeline_parallel = click.option(
    "--pipeline-parallel-size", callback=_refuse, expose_value=False, hidden=True, default=None
)
_expert_parallel = click.option(
    "--enable-expert-parallel", callback=_refuse, expose_value=False, hidden=True, is_flag=True, default=None
)


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the catalogue's names that begin so; where there is none, have the shell complete a path."""
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE

    found = [
        CompletionItem(name, help=one.description) for name, one in CATALOGUE.items() if name.startswith(incomplete)
    ]
    return found or [CompletionItem(incomplete, type="file")]


engine_options = grouped(
    "Engine",
    _pipeline_parallel,
    _expert_parallel,
    config_option,
    click.option(
        "--model",
        metavar="M",
        shell_complete=complete_model,
        help="Model folder, .gguf file, hub id (owner/name, owner/name:Q4_K_M) or a name that `inflight pull` lists, "
        "such as smollm2; else the built-in one.",
    ),
    click.option("--revision", help="Branch, tag or commit of a hub id."),
    click.option("--family", metavar="F", help="Family of models of your own, as package.module:NAME."),
    click.option(
        "--backend",
        default="auto",
        show_default=True,
        help="auto: our kernels; transformers: that library's modules, for models without a family here; slow.",
    ),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        is_eager=True,  # presets ask for it
        help="cpu, cuda or cuda:N; auto: a GPU if there is one (pip install 'inflight-llm[gpu]').",
    ),
    click.option("--enforce-eager", is_flag=True, help="On a GPU, replay no step as a graph."),
    click.option(
        "--batch-invariant",
        is_flag=True,
        help="On a GPU, an answer has the same bits in any batch; on a CPU it always has.",
    ),
    click.option(
        "--attention-backend",
        default="auto",
        show_default=True,
        help="On a GPU: auto, our kernels; flash-attn or flashinfer, where it is installed.",
    ),
    click.option(
        "--tensor-parallel-size",
        type=int,
        default=1,
        show_default=True,
        help="GPUs that share the model, a process for each.",
    ),
    click.option("--dtype", default="auto", show_default=True, help="auto, bfloat16 or float32."),
    click.option(
        "--quantization",
        default="none",
        show_default=True,
        help="none; int8 or int4 for the layers' matrices; int8-all or int4-all for the output projection too; "
        "fp8 for the layers', on GPUs.",
    ),
    click.option(
        "--quantization-group-size",
        type=int,
        default=32,
        show_default=True,
        help="Inputs that share a scale in int4: 32, 64 or 128.",
    ),
    click.option(
        "--kv-cache-dtype", default="auto", show_default=True, help="auto, as activations are held; int8; fp8, on GPUs."
    ),
    click.option(
        "--pooling",
        default="auto",
        show_default=True,
        help="Tokens that a text's vector is made of: cls, mean or last; auto: as the model's files say, if they do.",
    ),
    click.option(
        "--score-tokens",
        nargs=2,
        help="Two answers, by which a model that continues texts scores pairs: yes no, of Qwen3-Reranker.",
    ),
    click.option("--score-template", help="File with the Jinja template that makes a prompt of a pair to be scored."),
    click.option(
        "--lora",
        multiple=True,
        metavar="NAME=PATH",
        help="A low-rank adapter as PEFT saves it, which requests ask for as their model; several times.",
    ),
    click.option("--max-loras", type=int, help="Adapters in memory at a time; 8 where --lora is given."),
    click.option("--max-lora-rank", type=int, help="Rank that memory is set aside for; 16, or the largest of --lora."),
    click.option(
        "--load-format",
        default="auto",
        show_default=True,
        help="auto; dequantize: a quantized model's matrices as plain numbers, slower and nearer; dummy: random.",
    ),
    click.option("--max-num-seqs", type=int, help="Most sequences running at once."),
    click.option("--max-num-batched-tokens", type=int, help="Most tokens computed in one step."),
    click.option("--max-model-len", type=int, help="Most tokens of prompt and answer together."),
    click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per KV block."),
    click.option(
        "--gpu-memory-utilization",
        type=float,
        help="Share of a GPU's memory that this engine may have; 0.9 where neither this nor --kv-memory is given.",
    ),
    click.option("--kv-memory", type=float, help="GiB for keys and values."),
    click.option("--num-blocks", type=int, help="KV blocks, instead of --kv-memory."),
    click.option("--state-memory", type=float, help="GiB for snapshots of recurrent state, where a model has any."),
    click.option(
        "--kv-eviction",
        default="lru",
        show_default=True,
        help="What gives way in the prefix cache: lru, or sessions: blocks of the session that is worth least.",
    ),
    click.option(
        "--kv-cache-host",
        type=float,
        metavar="GiB",
        help="Of host memory, for keys and values whose own blocks are taken for others.",
    ),
    click.option(
        "--kv-cache-dir",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="Keep keys and values in this folder, too: over restarts, and for other engines that share it.",
    ),
    click.option("--kv-cache-disk", type=float, metavar="GiB", help="That --kv-cache-dir may hold; 10 without it."),
    click.option(
        "--no-prefix-caching", "enable_prefix_caching", flag_value=False, default=True, help="Share no prefixes."
    ),
    click.option("--watermark", type=float, default=0.01, show_default=True, help="Share of blocks newcomers leave."),
    click.option("--threads", type=int, help="Kernel threads; without it one for each core."),
    click.option("--pin-threads", is_flag=True, help="Each kernel thread but the first stays on a core of its own."),
    click.option(
        "--cpu-list", metavar="CPUS", help="CPUs such as 0-7,16-23, one for each kernel thread, which stays on it."
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of requests that name none."),
)


def declared(options: Mapping[str, Option[Any]]) -> list[Decorator]:
    """What the entries of a registry declare, as options of the command line."""
    return [click.option(option(one.name), type=one.kind, help=one.help) for one in options.values()]


scheduling_options = grouped(
    "Scheduling",
    click.option(
        "--preset",
        callback=_take_preset,
        is_eager=True,
        expose_value=False,
        help="latency, throughput, mixed or offline: options that go together; what is given besides wins.",
    ),
    click.option("--strategy", default="chunked", show_default=True, help=", ".join(STRATEGIES) + "."),
    *declared(OPTIONS),
    click.option("--policy", default="fcfs", show_default=True, help=", ".join(POLICIES) + "."),
    click.option(
        "--predictor", help=f"Output lengths for sjf and admission: {', '.join(PREDICTORS)} or package.module:Class."
    ),
    click.option("--tenant-weight", "tenant_weights", multiple=True, metavar="NAME=W", help="Share under fair."),
    click.option(
        "--lane-floor",
        type=float,
        default=0.05,
        show_default=True,
        help="Share of the steps' tokens that the batch lane has while it has work; 0: what others leave.",
    ),
    click.option("--kv-allocation", default="paged", show_default=True, help="paged, reserve-request, reserve-max."),
    click.option("--preemption", default="recompute", show_default=True, help="recompute, swap or auto."),
    click.option("--swap-space", type=float, help="GiB that preempted sequences may be swapped to."),
    click.option("--admission", default="off", show_default=True, help="off, queue, slo or auto (both)."),
    click.option("--max-queued-requests", type=int, help="Most requests waiting, with --admission queue or auto."),
    click.option("--max-queued-tokens", type=int, help="Most tokens waiting, with --admission queue or auto."),
    click.option("--ttft-target", type=float, help="Seconds to the first token that --admission slo promises."),
    click.option(
        "--speculation",
        metavar="FROM",
        default=DEFAULT,
        show_default=True,
        help="Drafts from suffix, draft:MODEL, heads or heads:FOLDER, where they pay; auto chooses, off has none.",
    ),
    click.option("--speculation-max-tokens", type=int, help="Most drafts of a sequence in a step."),
)

record_option = click.option(
    "--record", type=click.Path(dir_okay=False, path_type=Path), help="Write the step record (JSON lines) here."
)

sampling_options = grouped(
    "Sampling",
    click.option("--n", type=int, default=1, show_default=True, help="Samples of each prompt."),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token."),
    click.option("--top-k", type=int, default=0, show_default=True, help="Draw from the k likeliest; 0: from all."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from this share of probability."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="Least share of the likeliest's."),
    click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1: repeat less."),
    click.option("--presence-penalty", type=float, default=0.0, show_default=True, help="Per token once there."),
    click.option("--frequency-penalty", type=float, default=0.0, show_default=True, help="Per time it is there."),
    click.option("--logit-bias", metavar="JSON", help='Numbers added to logits, such as {"12": -100}.'),
    click.option("--max-tokens", type=int, default=512, show_default=True, help="Most tokens of an answer."),
    click.option("--min-tokens", type=int, default=0, show_default=True, help="Fewest tokens of an answer."),
    click.option("--stop", multiple=True, help="Text that ends an answer; may be given several times."),
    click.option("--stop-token-ids", multiple=True, type=int, help="Token id that ends an answer; several times."),
    click.option("--include-stop-str-in-output", is_flag=True, help="Keep the text that ended it."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the model's own end token."),
    click.option("--logprobs", type=int, help="Report log-probabilities with this many alternatives."),
    click.option("--prompt-logprobs", type=int, help="The same for the tokens of the prompt."),
)


def name_model(name: str | None, values: dict[str, Any]) -> None:
    """Take a verb's argument MODEL for its option --model. Raises click.UsageError where both are given."""
    if name is not None and values["model"] is not None:
        raise click.UsageError(f"MODEL {name!r} and --model {values['model']!r} both name a model; give one.")
    values["model"] = name if name is not None else values["model"]


def engine_settings(values: dict[str, Any]) -> EngineSettings:
    """Takes the engine's options out of a verb's arguments."""
    return EngineSettings(**{item.name: values.pop(item.name) for item in fields(EngineSettings)})


def scheduling_settings(values: dict[str, Any]) -> SchedulingSettings:
    """Takes the scheduling options out of a verb's arguments."""
    given = {name: values.pop(name) for name in SCHEDULING_NAMES if name in values}
    given["tenant_weights"] = dict(_weight(one) for one in given["tenant_weights"])
    lanes = click.get_current_context().meta.get(LANES, {})
    return SchedulingSettings.of(**given, lanes=lanes)


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise SettingsError(f"--tenant-weight is {text!r}; write NAME=W with a number above 0, such as acme=2.")
    return name, weight


def sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Takes the sampling options out of a verb's arguments. `--seed` stays the engine's: each request draws its own."""
    names = [item.name for item in fields(SamplingParams) if item.name in values and item.name != "seed"]
    given = {name: values.pop(name) for name in names}
    if given.get("logit_bias"):
        try:
            given["logit_bias"] = json.loads(given["logit_bias"])
        except ValueError as error:
            cause = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InvalidSampling(f"--logit-bias is not JSON ({cause}); write it like '{{\"12\": -100}}'.") from None
    return SamplingParams(**given)
