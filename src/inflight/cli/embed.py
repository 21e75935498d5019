"""`inflight embed`: a vector for each line of a file, in one batched run."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import takes
from inflight.cli.files import LineReader, check_writable
from inflight.cli.options import engine_options, engine_settings, scheduling_options, scheduling_settings
from inflight.cli.progress import Interrupt, Progress, open_engine
from inflight.cli.summary import show
from inflight.cli.translated_options import EngineVerb
from inflight.config.setting import setting
from inflight.counted import counted

if TYPE_CHECKING:
    from inflight.build import Engine
    from inflight.cli.run_lines import LineRefused
    from inflight.core.types.request import RequestRefused
    from inflight.frontend.outputs import OutputCollector


LINES_PER_STEP = 256  # texts are done in a step, which takes as many as it has room for


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Vectors, and where they are written."""

    output: Path | None = setting(None, "*.npy, or JSONL.", "Options", path="file")
    dimensions: int | None = setting(None, "Keep the first so many numbers of each vector.")
    prompt_name: str | None = setting(None, "One of the model's own prompts, put before each text.")
    truncate: bool = setting(False, "Cut texts that are too long for the model, instead of refusing them.")


@click.command("embed", cls=EngineVerb)
@click.argument("input_path", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@engine_options
@scheduling_options
@takes(asked=VectorOptions)
def command(input_path: Path, asked: VectorOptions, **values: Any) -> int:
    """Make a vector of every line of FILE (- for standard input).

    Lines are JSON: a text, or an object with "text" (or "input") and maybe an "id". Vectors go to --output: an array of
    float32 [lines, numbers] where that ends in .npy, else a line {"index": …, "embedding": […]} each, in input order;
    for a line that cannot be served {"index": …, "error": …} (in an array NaN).
    """
    settings, scheduling = engine_settings(values), scheduling_settings(values)
    if str(input_path) != "-" and not input_path.is_file():
        raise click.UsageError(f"{input_path} is no file; give one with a text a line, or - for standard input.")
    check_writable(asked.output, reads=[input_path])
    engine = open_engine(settings, scheduling, None)
    try:
        from inflight.cli.run_lines import LineRun, input_file, line_writer

        forms = _forms(engine, asked)
        with ExitStack() as stack:
            rows: list[dict[str, Any]] | None = None
            if asked.output is None:
                write = line_writer(sys.stdout)
            elif asked.output.suffix == ".npy":
                rows = []
                write = rows.append
            else:
                write = line_writer(stack.enter_context(asked.output.open("w", encoding="utf-8")))
            file = input_file(input_path, stack)
            interrupt = stack.enter_context(Interrupt())
            run = LineRun(engine, forms, write, {}, lines_per_step=LINES_PER_STEP, observes=False)
            try:
                run.work(LineReader(file), interrupt, Progress("Embedding", "texts"), "tokens/s")
            finally:
                if rows is not None and asked.output is not None:
                    _save(asked.output, rows)
        failed = f", {run.failed:,} without" if run.failed else ""
        vectors = counted(run.ended - run.failed, "vector")
        show(f"{vectors}{failed}; {run.tokens:,} tokens, {run.rate():,.0f} tokens/s.")
        return 130 if interrupt.wanted else 1 if run.failed else 0
    finally:
        engine.loop.close()


def _forms(engine: Engine, asked: VectorOptions) -> _Texts:
    """Return how lines are read. Raises click.UsageError where the model makes no vectors, or lacks the prompt."""
    from inflight.frontend.text_tasks import TextTaskError, TextTasks

    tasks = TextTasks(engine.model.pooler, engine.text_prompts)
    try:
        tasks.check("vectors")
        before = tasks.before(asked.prompt_name)
    except TextTaskError as error:
        raise click.UsageError(str(error)) from None
    max_tokens = engine.capacity.max_model_len if asked.truncate else None
    return _Texts(engine, before, tasks.params("vectors", dimensions=asked.dimensions), max_tokens)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Lines that are texts. before: the prompt before each. max_tokens: longer ones are cut; None: refused."""

    engine: Engine
    before: str
    params: Any
    max_tokens: int | None

    def take(self, index: int, number: int, text: str) -> _Text:

        name = None
        try:
            text, name = _text_of(text)
            prompts = self.engine.prompts
            tokens = prompts.text(self.before + text, max_tokens=self.max_tokens)
            return _Text(
                index, number, name, prompts.pooled(str(index), tokens, self.params, self.engine.loop.clock.now())
            )
        except ValueError as error:
            if not type(error).__module__.startswith("inflight."):
                raise  # a bug of ours
            raise _refusal(index, number, name, str(error)) from None

    def skip(self, number: int, text: str) -> None:
        raise NotImplementedError("an embedding run is not resumed")


class _Text:
    parsing = None
    prompts = (None,)

    def __init__(self, index: int, number: int, name: Any, request: Any):
        self._index, self._number, self._name, self.requests = index, number, name, (request,)

    def answer(self, ended: list[OutputCollector]) -> dict[str, Any]:
        vector, finish = ended[0].embedding, ended[0].finishes[0]
        if vector is None:
            why = (finish and finish.detail) or "The step failed."
            raise _refusal(self._index, self._number, self._name, why)
        return _line(self._index, self._name) | {"embedding": vector}

    def refused(self, refusal: RequestRefused) -> LineRefused:
        return _refusal(self._index, self._number, self._name, str(refusal))


def _refusal(index: int, number: int, name: Any, why: str) -> LineRefused:
    from inflight.cli.run_lines import LineRefused

    sentence = f"line {number}: {why}"
    return LineRefused(sentence, _line(index, name) | {"error": sentence})


def _line(index: int, name: Any) -> dict[str, Any]:
    return {"index": index} if name is None else {"index": index, "id": name}


def _save(path: Path, rows: list[dict[str, Any]]) -> None:
    import numpy as np

    vectors = {row["index"]: row.get("embedding", ()) for row in rows}
    width = max(map(len, vectors.values()), default=0)
    array = np.full((max(vectors, default=-1) + 1, width), np.nan, np.float32)
    for index, vector in vectors.items():
        array[index, : len(vector)] = vector
    np.save(path, array)


class LineError(ValueError):
    """A line has no text."""


def _text_of(line: str) -> tuple[str, Any]:
    """Return the text, and the line's own id. Raises LineError."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise LineError('it is not JSON; write a text in quotes, or {"text": "…"}.') from None
    if isinstance(data, str):
        return data, None
    if isinstance(data, dict):
        given = [data[key] for key in ("text", "input") if isinstance(data.get(key), str)]
        if given:
            return given[0], data.get("id")
    raise LineError('it has no text; write one in quotes, or {"text": "…"}.')
