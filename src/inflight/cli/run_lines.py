"""Run the lines of a file through one engine: read ahead, and write answers in input order as soon as possible.

A line that cannot be served is reported with its number and answered by an error line; the others run on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from inflight.build import Engine
from inflight.cli.files import LineReader
from inflight.cli.progress import Interrupt, Progress
from inflight.cli.summary import print_predictions, print_summary, show
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.counted import counted
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.offline import Delta, Offline
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window, summarize
from inflight.records.json_text import json_text

if TYPE_CHECKING:
    from inflight.cli.line_forms import Earlier

READ_AHEAD = 4096  # requests in the engine that are not yet answered; bounds memory for files of any length
LINES_PER_STEP = 64  # read between two steps, so that reading never delays running requests for long
IDLE_SECONDS = 0.2  # longest wait for a line when nothing is to be computed, before Ctrl-C is looked for


class LineRefused(Exception):
    """A line cannot be served, or failed; `answer` is written for it."""

    def __init__(self, sentence: str, answer: dict[str, Any]):
        super().__init__(sentence)
        self.answer = answer


class Line(Protocol):
    """A line as requests.

    Attributes:
        requests: Of the engine.
        prompts: Their texts, where they came as text.
        parsing: Parsing of the answers.
    """

    @property
    def requests(self) -> Sequence[Request]: ...

    @property
    def prompts(self) -> Sequence[str | None]: ...

    @property
    def parsing(self) -> AnswerParsing | None: ...

    def answer(self, ended: list[OutputCollector]) -> dict[str, Any]:
        """Return the output line, when all requests have ended. Raises LineRefused."""

    def refused(self, refusal: RequestRefused) -> LineRefused:
        """Return the error of a request that the engine refused."""


class LineForms(Protocol):
    """The forms of lines that a verb reads."""

    def take(self, index: int, number: int, text: str) -> Line:
        """Return line `number` of the input as requests. Raises LineRefused."""

    def skip(self, number: int, text: str) -> None:
        """Note a line that an earlier run answered."""


def run_lines(
    engine: Engine,
    defaults: SamplingParams,
    source: Path,
    target: Path | None,
    as_json: bool,
    resume: bool = False,
    parsers: ParserChoice | None = None,
) -> int:
    """Answer every line of a file.

    Args:
        resume: Continue after the answers that `target` holds already.
        parsers: Of answers to lines in OpenAI's form.

    Returns:
        The exit code: 0, 1 when lines failed (an earlier run's too), 130 after Ctrl-C.

    Raises:
        ResumeError: The output does not belong to this input.
    """
    from inflight.cli.line_forms import AnswerForms, Earlier, earlier_answers

    with ExitStack() as stack:
        earlier = Earlier()
        if resume:
            assert target is not None
            earlier = earlier_answers(source, target, engine.prompts)
            show(f"{counted(len(earlier.answers), 'answer')} kept from an earlier run.")
        file = input_file(source, stack)
        out = stack.enter_context(_opened(target, earlier)) if target is not None else sys.stdout
        interrupt = stack.enter_context(Interrupt())
        run = LineRun(engine, AnswerForms(engine, defaults, parsers), line_writer(out), earlier.answers)
        # Answers on a terminal show how far it is.
        run.work(LineReader(file), interrupt, None if out.isatty() else Progress("Answering", "requests"))
    summary = summarize(run.observations, run.window)
    stats = engine.loop.stats()
    predictions = stats.predictions if "predictor" in engine.settings else None
    if as_json:
        more = {"predictions": None if predictions is None else asdict(predictions)}
        print(json_text(summary.to_json() | more), file=sys.stderr)
    else:
        print_summary(summary, stats.preemptions)
        if predictions is not None and predictions.samples:
            print_predictions(str(engine.settings["predictor"].value), predictions)
    if interrupt.wanted:
        show("Stopped; what was answered has been written.")
        return 130
    return 1 if run.failed or earlier.failed else 0


def input_file(source: Path, stack: ExitStack) -> int:
    """Open the input, and return its descriptor; - is standard input."""
    return 0 if str(source) == "-" else stack.enter_context(source.open("rb", buffering=0)).fileno()


def _opened(target: Path, earlier: Earlier) -> IO[str]:
    """Open the output file behind the whole lines that stay."""
    out = target.open("a" if earlier.whole_bytes else "w", encoding="utf-8")
    if earlier.whole_bytes:
        out.truncate(earlier.whole_bytes)
    return out


def line_writer(out: IO[str]) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes a line. As ASCII: a lone surrogate of a broken input must not break the output."""
    return lambda line: print(json_text(line), file=out, flush=True)


class LineRun:
    """The lines of one input, from reading to writing.

    Attributes:
        window: From the start to the end.
        tokens: Of all outputs, and of the prompts of embeddings.
        ended: Number of requests that have ended, and of lines without any.
        failed: Number of lines without an answer.
    """

    def __init__(
        self,
        engine: Engine,
        forms: LineForms,
        write: Callable[[dict[str, Any]], None],
        kept: Mapping[int, object],
        *,
        lines_per_step: int = LINES_PER_STEP,
        observes: bool = True,
    ):
        """Prepare a run.

        Args:
            write: Called with each output line.
            kept: Answers of an earlier run by index.
            lines_per_step: Read between two steps at most.
            observes: Keep the observations of all requests, for a summary.
        """
        self._forms, self._write, self._kept = forms, write, kept
        self._lines_per_step, self._observes = lines_per_step, observes
        self._offline = Offline(engine.loop, engine.tokenizer)
        self._in_flight: dict[int, Line] = {}  # by index
        self._index_of: dict[str, int] = {}  # request → index of its line
        self._ended: dict[int, list[OutputCollector]] = {}  # of lines with several requests
        self._ready: dict[int, dict[str, Any]] = {}  # answered, but an earlier line is not
        self._read = 0  # lines taken, which is the next one's index
        self._next = 0  # index of the next answer to write
        self._clock = engine.loop.clock
        self.window = Window(self._clock.now(), self._clock.now())
        self.observations: list[Observation] = []
        self.tokens = self.ended = self.failed = 0

    def work(
        self, lines: LineReader, interrupt: Interrupt, progress: Progress | None, unit: str = "output tokens/s"
    ) -> None:
        """Run until all lines are answered or Ctrl-C."""
        try:
            while not (lines.ended and not self._offline.unfinished) and not interrupt.wanted:
                self._read_some(lines)
                self._take(self._offline.step())
                if progress is not None:
                    done = self.ended + len(self._kept)
                    progress.update(done, done + self._offline.unfinished, f"{self.rate():,.0f} {unit}")
            self._offline.abort_all()
        finally:
            if progress is not None:
                progress.close()
            for index in sorted(self._ready):  # after Ctrl-C: those behind a line without an answer
                self._write(self._ready.pop(index))
            self.window = Window(self.window.start, self._clock.now())

    def rate(self) -> float:
        """Return tokens per second so far."""
        return self.tokens / max(self._clock.now() - self.window.start, 1e-9)

    def _read_some(self, lines: LineReader) -> None:
        """Add lines while there is room. A silent pipe delays no running request."""
        unfinished = self._offline.unfinished
        room = min(self._lines_per_step, READ_AHEAD - unfinished - len(self._ready))
        for number, line in lines.take(room, 0 if unfinished else IDLE_SECONDS):
            index, self._read = self._read, self._read + 1
            if index in self._kept:
                self._forms.skip(number, line)
                continue
            try:
                self._add(index, self._forms.take(index, number, line))
            except LineRefused as refused:
                self._fail(index, refused)

    def _add(self, index: int, line: Line) -> None:
        """Add all requests of a line or none. Raises LineRefused."""
        added: list[str] = []
        for request, prompt in zip(line.requests, line.prompts, strict=True):
            try:
                self._offline.add(request, prompt, line.parsing)
            except RequestRefused as refusal:
                for request_id in added:
                    self._offline.forget(request_id)
                raise line.refused(refusal) from None
            added.append(request.request_id)
        self._in_flight[index] = line
        self._index_of.update(dict.fromkeys(added, index))

    def _take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if not delta.ends:
                continue
            collector = delta.collector
            index = self._index_of.pop(collector.request.request_id)
            line, ended = self._in_flight[index], self._ended.setdefault(index, [])
            ended.append(collector)
            if not any(finish is not None and finish.reason == "error" for finish in collector.finishes):
                self._note(collector)
            if len(ended) < len(line.requests):
                continue
            del self._in_flight[index], self._ended[index]
            try:
                self._answered(index, line.answer(ended))
            except LineRefused as failure:
                self._fail(index, failure)

    def _note(self, collector: OutputCollector) -> None:
        request, timings = collector.request, collector.timings
        assert timings is not None
        self.ended += 1
        self.tokens += collector.output_tokens if collector.embedding is None else len(request.prompt_token_ids)
        if not self._observes:
            return
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
                tenant=request.tenant,
                program=request.of_program,
            )
        )

    def _fail(self, index: int, refused: LineRefused) -> None:
        self.failed += 1
        self.ended += 1
        now, sentence = self._clock.now(), str(refused)
        if self._observes:
            self.observations.append(Observation(str(index), intended=now, ended=now, outcome="failed", error=sentence))
        show(f"inflight: {sentence}")
        self._answered(index, refused.answer)

    def _answered(self, index: int, line: dict[str, Any]) -> None:
        self._ready[index] = line
        while self._next in self._ready or self._next in self._kept:
            if self._next in self._ready:
                self._write(self._ready.pop(self._next))
            self._next += 1
