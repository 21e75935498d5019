"""`inflight chat`: a conversation in the terminal that streams.

Knows the terminal and the messages so far; the engine keeps no conversation (its prefix cache keeps the work).
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from inflight.cli.options import (
    complete_model,
    engine_options,
    engine_settings,
    name_model,
    record_option,
    sampling_options,
    sampling_params,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.progress import Interrupt, open_engine
from inflight.cli.summary import show
from inflight.cli.verb import Verb
from inflight.core.types.sampling import SamplingParams
from inflight.counted import printable
from inflight.text import Conversation

HELP = "Type a message; /reset starts anew, /help shows this, /exit (or Ctrl-D) ends. Ctrl-C stops an answer."

NO_TEMPLATE = "This model has no chat template; use `inflight run --raw PROMPT` instead."


@click.command("chat", cls=Verb)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@engine_options
@scheduling_options
@sampling_options
@record_option
@click.option("--system", metavar="TEXT", help="System message at the start of the conversation.")
def command(name: str | None, system: str | None, record: Path | None, **values: Any) -> int:
    """Talk with MODEL (as of serve; without it the built-in model); each answer streams as it is made."""
    name_model(name, values)
    if sys.stdin is None:
        raise click.UsageError("Standard input is closed, so there is nobody to talk with; use `inflight run PROMPT`.")
    if values["n"] != 1:
        raise click.UsageError(f"--n is {values['n']}, but a conversation goes on from one answer; leave it out.")
    params, settings, scheduling = sampling_params(values), engine_settings(values), scheduling_settings(values)
    from inflight.build import has_chat_template

    if not has_chat_template(settings):  # before minutes of loading
        raise click.UsageError(NO_TEMPLATE)
    engine = open_engine(settings, scheduling, record)
    try:
        if not engine.prompts.can_chat:  # dummy weights without a tokenizer
            raise click.UsageError(NO_TEMPLATE)
        engine.prompts.check_chat()
        _talk(engine, params, system)
    finally:
        engine.loop.close()
    return 0


def _talk(engine: Any, params: SamplingParams, system: str | None) -> None:
    from inflight.frontend.offline import Offline

    _take_any_text()
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives input() history and editing)

        print(HELP, file=sys.stderr)
    start = [{"role": "system", "content": system}] if system else []
    messages: list[dict[str, str]] = list(start)
    offline = Offline(engine.loop, engine.tokenizer)
    for turn, text in enumerate(_typed()):
        if text == "/exit":
            return
        if text in ("/help", "/reset"):
            messages = list(start) if text == "/reset" else messages
            print(HELP if text == "/help" else "The conversation starts anew.", file=sys.stderr)
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer = _answer(engine, offline, params, messages, turn)
        except ValueError as error:
            if not type(error).__module__.startswith("inflight."):
                raise
            messages.pop()
            show(f"inflight: {error} (/reset starts a new conversation.)")
        else:
            messages.append({"role": "assistant", "content": answer})


def _take_any_text() -> None:
    """Broken bytes are told by the tokenizer, and what the terminal cannot show must not end the conversation."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _typed() -> Any:
    """Lines that are not empty, until the end of input."""
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D ends.)", file=sys.stderr)
            continue
        if text:
            yield text


def _answer(engine: Any, offline: Any, params: SamplingParams, messages: list[dict[str, str]], turn: int) -> str:
    token_ids = engine.prompts.chat(Conversation(messages)).token_ids
    request = engine.prompts.request(f"turn-{turn}", token_ids, params, engine.loop.clock.now())
    collector = offline.add(request)
    with Interrupt() as interrupt:
        while not collector.finished:
            deltas = offline.abort_all() if interrupt.wanted else offline.step()
            print(printable("".join(delta.text for delta in deltas), keep="\n\t"), end="", flush=True)
    one = collector.output().outputs[0]
    print(" …" if interrupt.wanted else "")
    if one.detail is not None:
        print(f"inflight: {one.detail}", file=sys.stderr)
    text: str = one.text
    return text
