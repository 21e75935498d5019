"""`inflight chat`: a conversation in the terminal that streams. The engine keeps cached blocks, no conversation."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from inflight.cli.translated_options import EngineVerb
from inflight.core.types.sampling import SamplingParams
from inflight.counted import printable
from inflight.text import Conversation

if TYPE_CHECKING:
    from inflight.build import Engine
    from inflight.frontend.offline import Offline

HELP = "Type a message; /reset starts over, /help shows this, /exit (or Ctrl-D) ends. Ctrl-C stops an answer."

NO_TEMPLATE = (
    "This model has no chat template; give one with --chat-template, or use `inflight run PROMPT`, which continues the "
    "text."
)


@click.command("chat", cls=EngineVerb)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@engine_options
@scheduling_options
@sampling_options
@record_option
@click.option("--system", metavar="TEXT", help="System message at the start of the conversation.")
def command(name: str | None, system: str | None, record: Path | None, **values: Any) -> int:
    """Chat with MODEL (as with serve; without it the built-in model); each answer streams as it is generated."""
    name_model(name, values)
    if sys.stdin is None:
        raise click.UsageError("Standard input is closed, so no message can be typed; use `inflight run PROMPT`.")
    if values["n"] != 1:
        raise click.UsageError(f"--n is {values['n']}, but a conversation continues from one answer; leave it out.")
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


def _talk(engine: Engine, params: SamplingParams, system: str | None) -> None:
    from inflight.frontend.offline import Offline

    # The tokenizer reports broken bytes, and what the terminal cannot show must not end the conversation.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives input() history and editing)

        show(HELP)
    start = [{"role": "system", "content": system}] if system else []
    messages: list[dict[str, str]] = list(start)
    offline = Offline(engine.loop, engine.tokenizer)
    for turn, text in enumerate(_typed()):
        if text in ("/exit", "/bye"):
            return
        if text in ("/reset", "/clear"):
            messages = list(start)
            show("The conversation starts over.")
            continue
        if text[:1] == "/" and (text[1:].isalpha() or text == "/?"):
            show(HELP if text in ("/help", "/?") else f"{text} is no command. {HELP}")
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


def _typed() -> Iterator[str]:
    """Yield lines that are not empty, until the end of input."""
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            show("\n(/exit or Ctrl-D ends.)")
            continue
        if text:
            yield text


def _answer(engine: Engine, offline: Offline, params: SamplingParams, messages: list[dict[str, str]], turn: int) -> str:
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
        show(f"inflight: {one.detail}")
    return one.text
