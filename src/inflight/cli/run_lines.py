"""A JSONL file through one engine: lines are read ahead, answers are written in input order as soon as they can be.

Knows files, order, mistakes in lines, progress and the summary. A line that cannot be served is told with its number
and answered by an error line; the others run on. A line in OpenAI's batch form is answered in that form.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from inflight.build import Engine
from inflight.cli.interrupt import Interrupt
from inflight.cli.openai_line import openai_body, openai_line
from inflight.cli.progress import Progress
from inflight.cli.reading import LineReader
from inflight.cli.resume import Earlier, earlier_answers, line_id
from inflight.core.request import RequestRefused
from inflight.core.sampling import SamplingParams
from inflight.frontend.lines import InputLine, json_object, output_line, parse_object
from inflight.frontend.offline import Delta, Offline
from inflight.metrics.definitions import Percentiles
from inflight.metrics.summary import RequestTimes, Summary, summarize
from inflight.server.batch.lines import (
    BadLine,
    BatchLine,
    LineChecker,
    answered,
    error_of,
    is_batch_line,
    unanswered,
)
from inflight.server.errors import ApiError, invalid, refused

AHEAD = 4096  # requests handed to the engine and not yet answered; bounds memory for files of any length
LINES_PER_STEP = 64  # read between two steps, so that reading never makes the running ones wait long
IDLE_SECONDS = 0.2  # waits for a line so long when there is nothing to compute, then looks for Ctrl-C


def run_lines(
    engine: Engine, defaults: SamplingParams, source: Path, target: Path | None, as_json: bool, resume: bool = False
) -> int:
    """resume: go on behind what `target` holds already. Returns the exit code: 0, 1 when lines failed (an earlier
    run's too), 130 after Ctrl-C. Raises ResumeError."""
    with ExitStack() as stack:
        earlier = Earlier()
        if resume:
            assert target is not None
            earlier = earlier_answers(source, target, engine.prompts)
            kept = len(earlier.answers)
            print(f"{kept:,} answer{'' if kept == 1 else 's'} kept from an earlier run.", file=sys.stderr)
        file = 0 if str(source) == "-" else stack.enter_context(source.open("rb", buffering=0)).fileno()
        out = stack.enter_context(_opened(target, earlier)) if target is not None else sys.stdout
        interrupt = stack.enter_context(Interrupt())
        run = _Run(engine, defaults, out, earlier)
        run.work(LineReader(file), interrupt)
    summary = summarize(run.times, run.failed, run.seconds)
    if as_json:
        print(json.dumps(summary.to_json()), file=sys.stderr)
    else:
        print_summary(summary, engine.loop.snapshot().preemptions)
    if interrupt.wanted:
        print("Stopped; what was answered has been written.", file=sys.stderr)
        return 130
    return 1 if run.failed or earlier.failed else 0


def _opened(target: Path, earlier: Earlier) -> IO[str]:
    """The output file, behind the whole lines that stay."""
    out = target.open("a" if earlier.whole_bytes else "w", encoding="utf-8")
    if earlier.whole_bytes:
        out.truncate(earlier.whole_bytes)
    return out


class _Run:
    def __init__(self, engine: Engine, defaults: SamplingParams, out: IO[str], earlier: Earlier | None = None):
        self._engine, self._defaults, self._out = engine, defaults, out
        self._watched = out.isatty()  # then the answers themselves show how far it is
        self._offline = Offline(engine.loop, engine.tokenizer)
        self._kept = earlier.answers if earlier is not None else {}
        self._checker = LineChecker()
        self._batch_lines: dict[int, BatchLine] = {}  # by index; under way
        self._ready: dict[int, dict[str, Any]] = {}  # answered, but an earlier line is not
        self._read = 0  # lines taken, which is the next one's index
        self._next_index = 0  # of the answer to write next
        self._started = time.monotonic()
        self.times: list[RequestTimes] = []
        self._tokens = 0  # of all answers
        self.failed = 0
        self.seconds = 0.0

    def work(self, lines: LineReader, interrupt: Interrupt) -> None:
        progress = Progress("Answering", "requests")
        try:
            while not (lines.ended and not self._offline.unfinished) and not interrupt.wanted:
                self._read_some(lines)
                self._take(self._offline.step())
                if not self._watched:
                    self._show(progress)
            self._offline.abort_all()
        finally:
            progress.close()
            self._flush_the_rest()
            self.seconds = time.monotonic() - self._started

    def _read_some(self, lines: LineReader) -> None:
        """Hand over lines while there is room. A pipe that says nothing stops nobody who is running."""
        unfinished = self._offline.unfinished
        room = min(LINES_PER_STEP, AHEAD - unfinished - len(self._ready))
        for number, line in lines.take(room, 0 if unfinished else IDLE_SECONDS):
            index, self._read = self._read, self._read + 1
            try:
                self._take_line(index, number, line)
            except BadLine as bad:
                self._fail(index, f"line {number}: {bad}", _error_line(index, bad))
            except ValueError as error:
                if not type(error).__module__.startswith("inflight."):
                    raise
                self._fail(index, f"line {number}: {error}", self._refusal(index, error))

    def _take_line(self, index: int, number: int, line: str) -> None:
        """Hand a line to the engine, unless it is answered already. Raises ValueErrors with a sentence."""
        if index in self._kept and not self._kept[index].openai:
            return
        data = json_object(line)
        if not is_batch_line(data):
            return self._add(index, parse_object(data, self._defaults, self._engine.prompts))
        try:
            batch_line = self._checker.check(number, data)  # also of answered ones, because their custom ids are taken
        except BadLine:
            if index in self._kept:
                return
            raise
        if index not in self._kept:
            self._batch_lines[index] = batch_line
            self._add(index, openai_line(batch_line, self._defaults, self._engine.prompts))

    def _add(self, index: int, entry: InputLine) -> None:
        prompts = self._engine.prompts
        request = prompts.request(
            str(index),
            entry.prompt_token_ids,
            entry.params,
            self._engine.loop.clock.now(),
            forced_output_tokens=entry.forced_output_tokens,
            **entry.placement,
        )
        self._offline.add(request, entry.prompt)

    def _take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if not delta.ends:
                continue
            collector = delta.collector
            output, request, timings = collector.output(), collector.request, collector.timings
            index = int(request.request_id)
            failure = next((one.detail for one in output.outputs if one.finish_reason == "error"), None)
            line = self._batch_lines.get(index)
            if failure is not None:
                self._fail(index, failure, self._refusal(index, ApiError(500, failure, type="server_error")))
                continue
            assert timings is not None
            lengths = [len(one.token_ids) for one in output.outputs]
            self._tokens += sum(lengths)
            self.times.append(
                RequestTimes(
                    intended_send=request.arrival,
                    first_token=None if timings.ttft_ms is None else request.arrival + timings.ttft_ms / 1e3,
                    last_token=request.arrival + timings.total_ms / 1e3,
                    prompt_tokens=len(output.prompt_token_ids),
                    cached_tokens=timings.cached_tokens,
                    output_tokens=sum(lengths),
                    longest_output=max(lengths),
                )
            )
            answer = output_line(index, output)
            if line is not None:
                name = line_id(index)
                answer = answered(name, line.custom_id, 200, openai_body(line, name, output))
            self._write(index, answer)

    def _refusal(self, index: int, error: Exception) -> dict[str, Any] | None:
        """The output line of a batch line whose body was refused; None for a line of our own form."""
        line = self._batch_lines.get(index)
        if line is None:
            return None
        if isinstance(error, RequestRefused):
            error = refused(error)
        elif not isinstance(error, ApiError):
            error = invalid(str(error))
        return answered(line_id(index), line.custom_id, error.status, error.body)

    def _fail(self, index: int, sentence: str, answer: dict[str, Any] | None) -> None:
        self.failed += 1
        print(f"inflight: {sentence}", file=sys.stderr)
        self._write(index, answer if answer is not None else {"index": index, "error": sentence})

    def _write(self, index: int, line: dict[str, Any]) -> None:
        self._batch_lines.pop(index, None)
        self._ready[index] = line
        while self._next_index in self._ready or self._next_index in self._kept:
            if self._next_index in self._ready:
                self._print(self._ready.pop(self._next_index))
            self._next_index += 1

    def _flush_the_rest(self) -> None:
        """After Ctrl-C: what is answered behind a line that is not."""
        for index in sorted(self._ready):
            self._print(self._ready.pop(index))

    def _print(self, line: dict[str, Any]) -> None:
        # ASCII: a lone surrogate from a broken input file must not break the output.
        print(json.dumps(line), file=self._out, flush=True)

    def _show(self, progress: Progress) -> None:
        rate = self._tokens / max(time.monotonic() - self._started, 1e-9)
        done = len(self.times) + self.failed + len(self._kept)
        progress.update(done, done + self._offline.unfinished, f"{rate:,.0f} output tokens/s")


def _error_line(index: int, bad: BadLine) -> dict[str, Any]:
    return unanswered(line_id(index), bad.custom_id, error_of(bad.code, str(bad), bad.number))


def print_summary(summary: Summary, preemptions: int) -> None:
    """Throughput and latency side by side, on standard error."""
    failed = f", {summary.failed} failed" if summary.failed else ""
    preempted = f", {preemptions} preemptions" if preemptions else ""
    answered = f"{summary.requests:,} request{'' if summary.requests == 1 else 's'}"
    print(
        f"{answered} answered{failed} in {summary.wall_seconds:.2f} s{preempted}\n"
        f"throughput   {summary.requests_per_s:,.2f} requests/s   {summary.output_tokens_per_s:,.1f} output tokens/s   "
        f"{summary.input_tokens_per_s:,.1f} input tokens/s "
        f"({summary.cached_tokens:,} of {summary.prompt_tokens:,} cached)",
        file=sys.stderr,
    )
    if not summary.requests:
        return
    rows = (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e))
    print(f"latency      {'mean':>10} {'p50':>10} {'p95':>10} {'p99':>10}  ms", file=sys.stderr)
    for name, figures in rows:
        print(f"  {name:<10} {_milliseconds(figures)}  over {figures.samples:,} requests", file=sys.stderr)


def _milliseconds(figures: Percentiles) -> str:
    values = asdict(figures)
    return " ".join(
        f"{'-' if values[name] is None else format(values[name] * 1e3, ',.1f'):>10}"
        for name in ("mean", "p50", "p95", "p99")
    )
