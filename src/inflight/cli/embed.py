"""`inflight embed`: a vector for each line of a file, in one batched run.

Knows lines, the order of answers, progress and the two forms of output; what a vector is, the model knows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click

from inflight.cli.files import LineReader, check_writable
from inflight.cli.options import engine_options, engine_settings, scheduling_options, scheduling_settings
from inflight.cli.progress import Interrupt, Progress, open_engine
from inflight.cli.verb import Verb
from inflight.counted import counted

AHEAD = 4096  # texts handed to the engine whose vectors are not written yet
LINES_PER_STEP = 256


@click.command("embed", cls=Verb)
@click.argument("input_path", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@engine_options
@scheduling_options
@click.option("--output", "output_path", type=click.Path(dir_okay=False, path_type=Path), help="*.npy, or JSONL.")
@click.option("--dimensions", type=int, help="The first so many numbers of each vector.")
@click.option("--prompt-name", help="One of the model's own prompts, put before each text.")
@click.option("--truncate", is_flag=True, help="Cut what is longer than the model takes, instead of refusing it.")
def command(
    input_path: Path,
    output_path: Path | None,
    dimensions: int | None,
    prompt_name: str | None,
    truncate: bool,
    **values: Any,
) -> int:
    """Make a vector of every line of FILE (- for standard input).

    Lines are JSON: a text, or an object with "text" (or "input") and maybe an "id". Vectors go to --output: an array of
    float32 [lines, numbers] where that ends in .npy, else a line {"index": …, "embedding": […]} each, in input order;
    of a line that cannot be served {"index": …, "error": …} (in an array NaN).
    """
    settings, scheduling = engine_settings(values), scheduling_settings(values)
    if str(input_path) != "-" and not input_path.is_file():
        raise click.UsageError(f"{input_path} is no file; give one with a text a line, or - for standard input.")
    check_writable(output_path, reads=[input_path])
    engine = open_engine(settings, scheduling, None)
    try:
        from inflight.frontend.text_tasks import TextTaskError, TextTasks

        tasks = TextTasks(engine.model.pooler, engine.text_prompts)
        try:
            tasks.check("vectors")
            before = tasks.before(prompt_name)
        except TextTaskError as error:
            raise click.UsageError(str(error)) from None
        run = _Run(engine, before, tasks.params("vectors", dimensions=dimensions), truncate)
        with ExitStack() as stack:
            file = 0 if str(input_path) == "-" else stack.enter_context(input_path.open("rb", buffering=0)).fileno()
            sink = stack.enter_context(_Sink(output_path))
            interrupt = stack.enter_context(Interrupt())
            for index, told in run.work(LineReader(file), interrupt):
                sink.write(index, told)
        print(run.summary(), file=sys.stderr)
        return 130 if interrupt.wanted else 1 if run.failed else 0
    finally:
        engine.loop.close()


class _Told:
    """Of a line: a vector, or why there is none."""

    __slots__ = ("error", "name", "vector")

    def __init__(self, name: Any, vector: tuple[float, ...] = (), error: str | None = None):
        self.name, self.vector, self.error = name, vector, error


class _Run:
    def __init__(self, engine: Any, before: str, params: Any, truncate: bool):
        from inflight.frontend.offline import Offline

        self._engine, self._before, self._params = engine, before, params
        self._most = engine.capacity.max_model_len if truncate else None
        self._offline = Offline(engine.loop, engine.tokenizer)
        self._names: dict[str, Any] = {}  # of lines under way, by index
        self._ready: dict[int, _Told] = {}
        self._read = self._next = self._tokens = self.failed = 0
        self._began = engine.loop.clock.now()

    def work(self, lines: LineReader, interrupt: Interrupt) -> Iterator[tuple[int, _Told]]:
        """Of each line in its order what is told."""
        progress = Progress("Embedding", "texts")
        try:
            while not (lines.ended and not self._offline.unfinished) and not interrupt.wanted:
                room = min(LINES_PER_STEP, AHEAD - self._offline.unfinished - len(self._ready))
                for number, line in lines.take(room, 0 if self._offline.unfinished else 0.2):
                    self._add(number, line)
                for delta in self._offline.step():
                    if delta.ends:
                        self._take(delta.collector)
                yield from self._in_order()
                progress.update(self._next, self._read, f"{self._rate():,.0f} tokens/s")
            self._offline.abort_all()
        finally:
            progress.close()

    def summary(self) -> str:
        failed = f", {self.failed:,} without" if self.failed else ""
        done = counted(self._next - self.failed, "vector")
        return f"{done}{failed}; {self._tokens:,} tokens, {self._rate():,.0f} tokens/s."

    def _rate(self) -> float:
        seconds: float = self._engine.loop.clock.now() - self._began
        return self._tokens / max(seconds, 1e-9)

    def _add(self, number: int, line: str) -> None:
        index, self._read = self._read, self._read + 1
        name = None
        try:
            text, name = _text_of(line)
            prompts = self._engine.prompts
            tokens = prompts.text(self._before + text, max_tokens=self._most)
            self._offline.add(prompts.pooled(str(index), tokens, self._params, self._engine.loop.clock.now()))
            self._names[str(index)] = name
        except ValueError as error:
            if not type(error).__module__.startswith("inflight."):
                raise  # a bug of ours
            self._fail(index, name, f"line {number}: {error}")

    def _take(self, collector: Any) -> None:
        request = collector.request
        name, index = self._names.pop(request.request_id), int(request.request_id)
        finish = collector.finishes[0]
        if collector.embedding is None:
            return self._fail(index, name, (finish and finish.detail) or "The step failed.")
        self._tokens += len(request.prompt_token_ids)
        self._ready[index] = _Told(name, collector.embedding)

    def _fail(self, index: int, name: Any, sentence: str) -> None:
        self.failed += 1
        print(f"inflight: {sentence}", file=sys.stderr)
        self._ready[index] = _Told(name, error=sentence)

    def _in_order(self) -> Iterator[tuple[int, _Told]]:
        while self._next in self._ready:
            yield self._next, self._ready.pop(self._next)
            self._next += 1


class _Sink:
    """The output: lines as they come, or an array when all have."""

    def __init__(self, path: Path | None):
        self._path = path
        self._array: list[tuple[float, ...]] | None = [] if path is not None and path.suffix == ".npy" else None
        self._out: IO[str] = sys.stdout

    def __enter__(self) -> _Sink:
        if self._path is not None and self._array is None:
            self._out = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._array is not None:
            self._save(self._array)
        elif self._path is not None:
            self._out.close()

    def write(self, index: int, told: _Told) -> None:
        if self._array is not None:
            self._array.append(told.vector)
            return
        line = {"index": index} if told.name is None else {"index": index, "id": told.name}
        more = {"embedding": told.vector} if told.error is None else {"error": told.error}
        print(json.dumps(line | more), file=self._out, flush=self._out is sys.stdout)

    def _save(self, vectors: list[tuple[float, ...]]) -> None:
        import numpy as np

        width = max((len(one) for one in vectors), default=0)
        array = np.full((len(vectors), width), np.nan, np.float32)
        for row, vector in enumerate(vectors):
            array[row, : len(vector)] = vector
        assert self._path is not None
        np.save(self._path, array)


class LineMistake(ValueError):
    """A line is no text."""


def _text_of(line: str) -> tuple[str, Any]:
    """The text, and the line's own id. Raises LineMistake."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise LineMistake('it is not JSON; write a text in quotes, or {"text": "…"}.') from None
    if isinstance(data, str):
        return data, None
    if isinstance(data, dict):
        given = [data[key] for key in ("text", "input") if isinstance(data.get(key), str)]
        if given:
            return given[0], data.get("id")
    raise LineMistake('it holds no text; write one in quotes, or {"text": "…"}.')
