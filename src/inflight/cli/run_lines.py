"""A JSONL file through one engine: lines are read ahead, answers are written in input order as soon as they can be.

Knows files, order, mistakes in lines, progress and the summary. A line that cannot be served is told with its number
and answered by an error line; the others run on. A line in OpenAI's batch form is answered in that form.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from inflight.build import Engine
from inflight.cli.files import LineReader
from inflight.cli.line_forms import Line, LineRefused, Lines
from inflight.cli.progress import Interrupt, Progress
from inflight.cli.resume import Earlier, earlier_answers
from inflight.cli.summary import print_predictions, print_summary
from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.counted import counted
from inflight.frontend.offline import Delta, Offline
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window, summarize
from inflight.records.json_text import json_text

AHEAD = 4096  # requests handed to the engine and not yet answered; bounds memory for files of any length
LINES_PER_STEP = 64  # read between two steps, so that reading never makes the running ones wait long
IDLE_SECONDS = 0.2  # waits for a line so long when there is nothing to compute, then looks for Ctrl-C


def run_lines(
    engine: Engine,
    defaults: SamplingParams,
    source: Path,
    target: Path | None,
    as_json: bool,
    resume: bool = False,
    parsers: ParserChoice | None = None,
) -> int:
    """resume: go on behind what `target` holds already. parsers: of answers to lines of OpenAI. Returns the exit code:
    0, 1 when lines failed (an earlier run's too), 130 after Ctrl-C. Raises ResumeError."""
    with ExitStack() as stack:
        earlier = Earlier()
        if resume:
            assert target is not None
            earlier = earlier_answers(source, target, engine.prompts)
            kept = len(earlier.answers)
            print(f"{counted(kept, 'answer')} kept from an earlier run.", file=sys.stderr)
        file = 0 if str(source) == "-" else stack.enter_context(source.open("rb", buffering=0)).fileno()
        out = stack.enter_context(_opened(target, earlier)) if target is not None else sys.stdout
        interrupt = stack.enter_context(Interrupt())
        run = _Run(engine, Lines(engine, defaults, parsers), out, earlier)
        run.work(LineReader(file), interrupt)
    summary = summarize(run.observations, run.window)
    stats = engine.loop.stats()
    predictions = stats.predictions if "predictor" in engine.settings else None  # nobody asked, so nobody wonders
    if as_json:
        more = {"predictions": None if predictions is None else asdict(predictions)}
        print(json_text(summary.to_json() | more), file=sys.stderr)
    else:
        print_summary(summary, stats.preemptions)
        if predictions is not None and predictions.samples:
            print_predictions(str(engine.settings["predictor"].value), predictions)
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
    def __init__(self, engine: Engine, lines: Lines, out: IO[str], earlier: Earlier):
        self._engine, self._out = engine, out
        self._watched = out.isatty()  # then the answers themselves show how far it is
        self._offline = Offline(engine.loop, engine.tokenizer)
        self._kept = earlier.answers
        self._lines = lines
        self._under_way: dict[int, Line] = {}  # by index
        self._index_of: dict[str, int] = {}  # of the line that a request belongs to
        self._ended: dict[int, list[OutputCollector]] = {}  # of lines with several requests
        self._ready: dict[int, dict[str, Any]] = {}  # answered, but an earlier line is not
        self._read = 0  # lines taken, which is the next one's index
        self._next_index = 0  # of the answer to write next
        self._clock = engine.loop.clock
        self.window = Window(self._clock.now(), self._clock.now())
        self.observations: list[Observation] = []
        self._tokens = 0  # of all answers
        self.failed = 0

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
            self.window = Window(self.window.start, self._clock.now())

    def _read_some(self, lines: LineReader) -> None:
        """Hand over lines while there is room. A pipe that says nothing stops nobody who is running."""
        unfinished = self._offline.unfinished
        room = min(LINES_PER_STEP, AHEAD - unfinished - len(self._ready))
        for number, line in lines.take(room, 0 if unfinished else IDLE_SECONDS):
            index, self._read = self._read, self._read + 1
            if index in self._kept:
                self._lines.pass_over(number, line)
                continue
            try:
                self._add(index, self._lines.take(index, number, line))
            except LineRefused as refused:
                self._fail(index, str(refused), refused.answer)

    def _add(self, index: int, line: Line) -> None:
        """All its requests or none. Raises LineRefused."""
        added: list[str] = []
        for request, prompt in zip(line.requests, line.prompts, strict=True):
            try:
                self._offline.add(request, prompt, line.parsing)
            except RequestRefused as refusal:
                for request_id in added:
                    self._offline.forget(request_id)
                raise line.refused(refusal) from None
            added.append(request.request_id)
        self._under_way[index] = line
        self._index_of.update(dict.fromkeys(added, index))

    def _take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if not delta.ends:
                continue
            collector = delta.collector
            index = self._index_of.pop(collector.request.request_id)
            line, ended = self._under_way[index], self._ended.setdefault(index, [])
            ended.append(collector)
            if not any(finish is not None and finish.reason == "error" for finish in collector.finishes):
                self._note(collector)
            if len(ended) < len(line.requests):
                continue
            del self._under_way[index], self._ended[index]
            try:
                self._write(index, line.answer(ended))
            except LineRefused as failure:
                self._fail(index, str(failure), failure.answer)

    def _note(self, collector: OutputCollector) -> None:
        request, timings = collector.request, collector.timings
        assert timings is not None
        self._tokens += collector.output_tokens
        last_token = request.arrival + timings.total_ms / 1e3
        self.observations.append(
            Observation(
                request_id=request.request_id,
                intended=request.arrival,
                ended=last_token,
                first_token=None if timings.ttft_ms is None else request.arrival + timings.ttft_ms / 1e3,
                last_token=last_token,
                prompt_tokens=len(request.prompt_token_ids),
                cached_tokens=timings.cached_tokens,
                output_tokens=collector.output_tokens,
                longest_output=collector.longest_output,
            )
        )

    def _fail(self, index: int, sentence: str, answer: dict[str, Any]) -> None:
        self.failed += 1
        now = self._clock.now()
        self.observations.append(Observation(str(index), intended=now, ended=now, outcome="failed", error=sentence))
        print(f"inflight: {sentence}", file=sys.stderr)
        self._write(index, answer)

    def _write(self, index: int, line: dict[str, Any]) -> None:
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
        print(json_text(line), file=self._out, flush=True)

    def _show(self, progress: Progress) -> None:
        rate = self._tokens / max(self._clock.now() - self.window.start, 1e-9)
        done = len(self.observations) + len(self._kept)
        progress.update(done, done + self._offline.unfinished, f"{rate:,.0f} output tokens/s")
