"""The command line: one file per verb, imported only when its verb is called.

Knows the verbs' names and how a mistake is told: one sentence on standard error, no traceback, exit code 1.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from inflight import __version__
from inflight.cli.first_steps import first_steps
from inflight.counted import printable

VERBS = {
    "demo": "See batching at work: a small server under traffic, in the browser and in words.",
    "serve": "Serve a model to OpenAI's clients.",
    "run": "Answer a prompt, or every line of a JSONL file.",
    "chat": "Talk with a model in the terminal.",
    "top": "What a server does now, in the terminal: batch, memory, queues, latencies.",
    "embed": "Vectors of texts, one for each line of a file.",
    "bench": "Measure a server: latency and throughput under a load, its capacity, a curve.",
    "compare": "The same requests under several engine settings, or on several servers, in turns.",
    "report": "Figures, pictures and a diagnosis from step records and bench results.",
    "simulate": "Run a workload on simulated engines: the same scheduler on virtual time.",
    "replay": "Run a record again: the same plans, or the first difference.",
    "calibrate": "Measure what this machine's steps take, for the simulator.",
    "plan": "Size a deployment: how many of which GPUs, under which settings, and why.",
    "tune": "Search the settings that serve a workload best, in simulation and on the real engine.",
    "pull": "Download a small model by its name, such as smollm2, or list the names.",
    "models": "Which models run here: families, what a folder or file is, what the caches hold.",
    "doctor": "What this machine can do: instruction set, bandwidth, peak rates, what fits.",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"inflight.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # told here, because click has an answer of its own to it
            _forget_output()
            return 141

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))  # from the table above: help imports no verb


@click.group(cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """inflight: an LLM inference server whose subject is batching."""
    if ctx.invoked_subcommand is None:
        click.echo(first_steps())


def main() -> None:
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        code: Any = app.main(arguments, prog_name="inflight", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("\nStopped.", file=sys.stderr)
        return 130
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        cause = error.strerror or type(error).__name__
        print(
            f"inflight: {printable(named)}{cause}; check the path, its permissions and the space that is left.",
            file=sys.stderr,
        )
        return 1
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours, not the user's mistake
        notes = getattr(error, "__notes__", ())  # of the environment variables that give an option
        sentence = printable("".join((str(error), *notes)), keep="\n")
        print(f"inflight: {sentence}", file=sys.stderr)
        return 1


def _forget_output() -> None:
    """The reader of standard output went away, as `head` does: what is left to be written has nowhere to go."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
