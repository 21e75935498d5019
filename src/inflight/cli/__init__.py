"""The command line: one file per verb, imported only when its verb is called.

Knows the verbs' names and how a mistake is told: one sentence on standard error, no traceback, exit code 1.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

VERBS = {
    "run": "Answer a prompt, or every line of a JSONL file.",
    "chat": "Talk with a model in the terminal.",
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))  # from the table above: help imports no verb


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="inflight", message="%(prog)s %(version)s")
def app() -> None:
    """inflight: an LLM inference server whose subject is batching."""


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
    except BrokenPipeError:
        # The reader of standard output went away (as `head` does); nothing is left to say to it.
        sys.stderr.close()
        return 141
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise  # a bug of ours, not the user's mistake
        print(f"inflight: {error}", file=sys.stderr)
        return 1
