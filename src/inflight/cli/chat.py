"""`inflight chat`: a conversation in the terminal that streams. The engine keeps cached blocks, no conversation."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.chat_session import Session
from inflight.cli.chat_terminal import Prompt, Writer
from inflight.cli.options import Generation, complete_model, generation_of, generation_options
from inflight.cli.progress import Interrupt, open_engine
from inflight.cli.summary import show, speed
from inflight.cli.translated_options import EngineVerb
from inflight.core.types.sampling import Grammar
from inflight.frontend.answers import Segment, TextSegment

if TYPE_CHECKING:
    from inflight.build import Engine

NO_TEMPLATE = (
    "This model has no chat template; give one with --chat-template, or use `inflight run PROMPT`, which continues the "
    "text."
)


@click.command("chat", cls=EngineVerb)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@generation_options
@click.option("--system", metavar="TEXT", help="System message at the start of the conversation.")
@click.option("--verbose", is_flag=True, help="Show tokens/s after each answer.")
@click.option("--nowordwrap", is_flag=True, help="Do not break lines of answers between words.")
def command(name: str | None, system: str | None, verbose: bool, nowordwrap: bool, **values: Any) -> int:
    """Chat with MODEL (as with serve; without it the built-in model); each answer streams as it is generated."""
    generation = generation_of(name, values)
    if sys.stdin is None:
        raise click.UsageError("Standard input is closed, so no message can be typed; use `inflight run PROMPT`.")
    if (n := generation.params.n) != 1:
        raise click.UsageError(f"--n is {n}, but a conversation continues from one answer; leave it out.")
    return talk(generation, system=system, is_verbose=verbose, wraps=not nowordwrap)


def talk(generation: Generation, *, system: str | None = None, is_verbose: bool = False, wraps: bool = True) -> int:
    """Load a model and chat with it until the end of input; return the exit code. Arguments are as of `Session`."""
    from inflight.build import has_chat_template

    if not has_chat_template(generation.engine):  # before minutes of loading
        raise click.UsageError(NO_TEMPLATE)
    engine = open_engine(generation.engine, generation.scheduling, generation.record)
    try:
        if not engine.prompts.can_chat:  # dummy weights without a tokenizer
            raise click.UsageError(NO_TEMPLATE)
        engine.prompts.check_chat()
        # The tokenizer reports broken bytes, and what the terminal cannot show must not end the conversation.
        for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=errors)
        prompt = Prompt()
        _converse(engine, Session(engine, generation.params, system, is_verbose, wraps, prompt), prompt)
    finally:
        engine.loop.close()
    return 0


def _converse(engine: Engine, session: Session, prompt: Prompt) -> None:
    if sys.stdin.isatty():
        show("Type a message; /help lists commands, /bye (or Ctrl-D) ends. Ctrl-C stops an answer.")
    answers = Answers(engine)
    for text in prompt.messages():
        if text in ("/exit", "/bye"):
            return
        try:
            if text[:1] == "/" and ((word := text.partition(" ")[0])[1:].isalpha() or word == "/?"):
                session.command(text)
            else:
                answers.answer(session, text)
        except OSError as error:
            show(f"inflight: {error.filename}: {error.strerror}.")
        except ValueError as error:
            if not type(error).__module__.startswith("inflight."):
                raise
            show(f"inflight: {error}")


class Answers:
    """Answers of one engine, with marks around the model's reasoning."""

    def __init__(self, engine: Engine) -> None:
        from inflight.frontend.offline import Offline
        from inflight.frontend.parsers.parser_choice import ParserNames
        from inflight.server.parsers import parsers_of, shown_token_ids

        self._engine, self._offline = engine, Offline(engine.loop, engine.tokenizer)
        self._parsers = parsers_of(engine.prompts, engine.tokenizer, ParserNames(tools="none"), engine.model.family)
        self._shown = shown_token_ids(self._parsers, engine.tokenizer)
        self._turns = 0

    def answer(self, session: Session, text: str) -> None:
        """Print the answer to a message, and add both to the conversation; neither where it cannot be answered."""
        session.messages.append({"role": "user", "content": text})
        try:
            content = self._stream(session)
        except ValueError as error:
            session.messages.pop()
            error.args = (f"{error} (/clear starts a new conversation.)",)
            raise
        session.messages.append({"role": "assistant", "content": content})

    def _stream(self, session: Session) -> str:
        from inflight.frontend.answers import AnswerParsing

        engine = self._engine
        encoded = engine.prompts.chat(session.conversation())
        self._turns += 1
        now = engine.loop.clock.now()
        opened = self._parsers is not None and self._parsers.opens_in_prompt(encoded.text)
        request = engine.prompts.request(
            f"turn-{self._turns}",
            encoded.token_ids,
            session.params,
            now,
            shown_token_ids=self._shown,
            grammar=self._grammar(session.form, encoded.text, opened),
        )
        collector = self._offline.add(request, parsing=AnswerParsing(self._parsers, in_reasoning=opened))
        writer, parts = Writer(session.wraps), Parts()
        with Interrupt() as interrupt:
            while not collector.finished:
                _ = self._offline.abort_all() if interrupt.wanted else self._offline.step()
                writer.write(parts.new_text(collector.answer(0).segments))
        writer.end()
        print(" …" if interrupt.wanted else "")
        output = collector.output()
        one = output.outputs[0]
        if one.detail is not None:
            show(f"inflight: {one.detail}")
        elif sys.stdin.isatty() and len(one.token_ids) == (limit := session.params.max_tokens):
            show(f"(The answer was cut at max_tokens, {limit:,}; /set parameter max_tokens -1 removes the limit.)")
        if session.is_verbose and (figures := speed(output)):
            show(f"({figures})")
        return collector.answer(0).content

    def _grammar(self, form: Grammar | None, prompt: str, in_reasoning: bool) -> Grammar | None:
        """Return the form of an answer, behind its reasoning where there is any."""
        from inflight.server.parsers import after_reasoning

        marks, tokenizer = None if self._parsers is None else self._parsers.reasoning_ends, self._engine.tokenizer
        if form is None or marks is None or tokenizer is None:
            return form
        has_reasoned = prompt.rstrip().endswith(marks.end) and not in_reasoning
        return form if has_reasoned else after_reasoning(form, marks, tokenizer, in_reasoning)


class Parts:
    """The parts of an answer that were printed."""

    def __init__(self) -> None:
        self._segment = self._piece = 0
        self._in_reasoning = False

    def new_text(self, segments: Sequence[Segment]) -> str:
        """Return the text since the last call, with marks around reasoning."""
        texts: list[str] = []
        while self._segment < len(segments):
            one = segments[self._segment]
            if isinstance(one, TextSegment):
                if one.is_reasoning != self._in_reasoning and len(one.pieces) > self._piece:
                    texts.append("Thinking ...\n" if one.is_reasoning else "\n... done thinking.\n\n")
                    self._in_reasoning = one.is_reasoning
                texts += one.pieces[self._piece :]
                self._piece = len(one.pieces)
            if self._segment + 1 == len(segments):
                break
            self._segment, self._piece = self._segment + 1, 0
        return "".join(texts)
