"""`inflight run`: answer one prompt as it streams, or every line of a JSONL file in one batched run."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from inflight.cli.declared import takes
from inflight.cli.files import check_writable
from inflight.cli.options import complete_model, generation_of, generation_options
from inflight.cli.progress import Interrupt, open_engine
from inflight.cli.summary import show, speed
from inflight.cli.translated_options import EngineVerb
from inflight.config.parsers import ParserSettings
from inflight.config.setting import setting
from inflight.core.types.sampling import SamplingParams
from inflight.counted import printable, seconds_of_parts
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.records.json_text import json_text
from inflight.text import Conversation

if TYPE_CHECKING:
    from inflight.build import Engine
    from inflight.frontend.outputs import RequestOutput

QUESTION = "What is continuous batching?"
_QUIET_SECONDS = 2.0  # without a byte of standard input, after which it is said that it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Input and output."""

    output_path: Path | None = setting(
        None, "Write answers here, not to standard output.", "Options", flags=("--output",), path="file"
    )
    resume: bool = setting(False, "Keep the answers in --output, and answer the other lines.")
    raw: bool = setting(False, "Give PROMPT to the model as it is, without its chat template.")
    as_json: bool = setting(False, "Print the answer as an output line, and the summary as JSON.", flags=("--json",))
    verbose: bool = setting(False, "Show every setting in force with its reason, the times of the start, and tokens/s.")
    nowordwrap: bool = setting(False, "Of a chat: do not break lines of answers between words.")


def _model_and_prompt(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the model and the prompt that the arguments name: MODEL, PROMPT, or MODEL and PROMPT."""
    if not words:
        return None, None
    from inflight.execution.checkpoints.hub import means_model

    if means_model(words[0]):
        return words[0], " ".join(words[1:]) or None
    if len(words) > 1:
        raise click.UsageError(
            f"run takes one PROMPT; {len(words)} words are given, the first of which names no model: put the prompt "
            'into quotes, as in inflight run smollm2 "What is gravity?".'
        )
    return None, words[0]


@click.command("run", cls=EngineVerb)
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_model)
@generation_options
@takes(parsing=ParserSettings)
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path, allow_dash=True), help="JSONL file, - for stdin."
)
@takes(asked=RunOptions)
def command(
    words: Sequence[str], input_path: Path | None, asked: RunOptions, parsing: ParserSettings, **values: Any
) -> int:
    """Answer PROMPT, or every line of a JSONL file; with MODEL alone, chat with it.

    Behind MODEL, text that is piped in comes before PROMPT: cat report.txt | inflight run smollm2 "Summarize this."

    Input lines are objects with "prompt", "prompt_token_ids" or "messages", and any sampling field, or OpenAI's batch
    lines with "custom_id", "method", "url" and "body". Answers go to standard output (or --output) in input order;
    progress and the summary go to standard error.
    """
    name, prompt = _model_and_prompt(words)
    if prompt is not None and input_path is not None:
        raise click.UsageError("PROMPT and --input both say what to answer; give one of them.")
    generation = generation_of(name, values)
    record, params = generation.record, generation.params
    _check_readable(input_path)
    check_writable(asked.output_path, record, reads=[input_path])
    if asked.resume:
        _check_files(input_path, asked.output_path)

    if name is not None and prompt is None and input_path is None and sys.stdin is not None and sys.stdin.isatty():
        from inflight.cli.chat import talk

        return talk(generation, is_verbose=asked.verbose, wraps=not asked.nowordwrap)
    question = _with_piped(prompt, name is not None) if input_path is None else ""  # before minutes of loading
    began = time.monotonic()
    engine = open_engine(generation.engine, generation.scheduling, record)
    try:
        if asked.verbose:
            _show_settings(engine, time.monotonic() - began)
        if input_path is not None:
            _warn_of_templates(engine)
            from inflight.cli.run_lines import run_lines
            from inflight.server.parsers import parsers_of

            names = ParserNames(parsing.tool_parser, parsing.reasoning_parser)
            parsers = parsers_of(engine.prompts, engine.tokenizer, names, engine.model.family)
            return run_lines(engine, params, input_path, asked.output_path, asked.as_json, asked.resume, parsers)
        code = _answer(engine, params, question, asked)
        if asked.raw:
            _warn_of_templates(engine)  # after the answer: compiling a template takes as long as a small model's start
        return code
    finally:
        engine.loop.close()
        if engine.loop.observer_error is not None:  # the answers are there, the record is not
            raise engine.loop.observer_error


def _show_settings(engine: Engine, seconds: float) -> None:
    """Print every setting in force, and the times of the start. seconds: of loading the engine, imports included."""
    for name, entry in engine.settings.items():
        show(f"{name}: {entry.value} ({entry.reason})")
    parts = seconds_of_parts(engine.start.parts())
    show(f"start: {seconds:.2f} s ({parts}, the rest imports); {time.process_time():.2f} s of CPU time so far")


def _warn_of_templates(engine: Engine) -> None:
    """Warn of a broken template, which prompts that are no messages do not need."""
    from inflight.text import ChatTemplateError, TokenizerError

    try:
        engine.prompts.check_chat()
    except (ChatTemplateError, TokenizerError) as error:
        show(f"inflight: warning: {error}")


def _check_readable(path: Path | None) -> None:
    if path is None or str(path) == "-":
        return
    if not path.exists():
        raise click.UsageError(f"--input {path} does not exist; give a JSONL file, or - for standard input.")
    if path.is_dir() or not os.access(path, os.R_OK):
        raise click.UsageError(f"--input {path} is {'a folder' if path.is_dir() else 'not readable'}; give a file.")


def _check_files(*paths: Path | None) -> None:
    """Check that a run can be resumed: the input is read from its beginning, the output is read and extended."""
    for name, path in zip(("--input", "--output"), paths, strict=True):
        if path is None or str(path) == "-" or (path.exists() and not path.is_file()):
            raise click.UsageError(f"--resume needs {name} to be a file, which it reads again; give its name.")


def _answer(engine: Engine, params: SamplingParams, prompt: str, asked: RunOptions) -> int:
    """Answer one prompt. Text streams as it comes; with --n above 1 or --json it is printed at the end."""
    from inflight.frontend.lines import output_line
    from inflight.frontend.offline import Offline

    chat = engine.prompts.can_chat and not asked.raw
    if not chat and not asked.raw:
        show("(This model has no chat template, so it continues the text; --chat-template FILE gives it one.)")
    messages = [{"role": "user", "content": prompt}]
    token_ids = engine.prompts.chat(Conversation(messages)).token_ids if chat else engine.prompts.tokens(prompt)
    request = engine.prompts.request("0", token_ids, params, engine.loop.clock.now())
    offline = Offline(engine.loop, engine.tokenizer)
    streams = params.n == 1 and not asked.as_json
    with Interrupt() as interrupt, _output(asked.output_path) as out:
        collector = offline.add(request, prompt)
        while not collector.finished:
            deltas = offline.abort_all() if interrupt.wanted else offline.step()
            if streams:
                print(_shown("".join(delta.text for delta in deltas), out), end="", file=out, flush=True)
        output = collector.output()
        if asked.as_json:
            print(json_text(output_line(0, output), ensure_ascii=False), file=out)
        elif streams:
            print(file=out)
        else:
            print("\n\n".join(_shown(one.text, out) for one in output.outputs), file=out)
    return _end(output, interrupt.wanted, shows_speed=asked.verbose or sys.stderr.isatty())


def _with_piped(prompt: str | None, joins: bool) -> str:
    """Return the prompt; without one, what is piped. joins: put what is piped before a prompt that is given."""
    piped = _piped() if prompt is None or (joins and _is_piped()) else ""
    if not piped and prompt is None:
        show(f"(No prompt was given, so here is one: {QUESTION})")
        return QUESTION
    return "\n\n".join(one for one in (piped, prompt) if one)


def _is_piped() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError):  # closed, or not of the system
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _piped() -> str:
    """Return the text of standard input, where that is neither a terminal nor closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    if not select.select([sys.stdin.fileno()], [], [], _QUIET_SECONDS)[0]:
        show("(Reading the prompt from standard input, until its end; `< /dev/null` leaves it out.)")
    return open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False).read().strip()


def _output(path: Path | None) -> IO[str]:
    if path is None:
        return open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False)
    return path.open("w", encoding="utf-8")


def _shown(text: str, out: IO[str]) -> str:
    """Return a model's text: unchanged for a file or a pipe, with escapes for a terminal."""
    return printable(text, keep="\n\t") if out.isatty() else text


def _end(output: RequestOutput, interrupted: bool, *, shows_speed: bool) -> int:
    """Print how it ended, where the text does not show it, and the figures if they are asked for. Return the exit
    code."""
    if interrupted:
        show("Stopped.")
        return 130
    for one in output.outputs:
        if one.detail is not None:
            show(f"inflight: {one.detail}")
    if any(one.finish_reason == "error" for one in output.outputs):
        return 1
    if shows_speed and (figures := speed(output)):
        show(f"({figures})")
    return 0
