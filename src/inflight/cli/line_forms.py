"""The two forms of input lines of `inflight run`: our own and OpenAI's batch form, as requests and as answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inflight.build import Engine
from inflight.cli.files import LineReader
from inflight.cli.run_lines import Line, LineRefused
from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.lines import json_object, output_line, parse_line, parse_object
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import Call, Limits, PreparedAnswer
from inflight.server.errors import ApiError, refused
from inflight.server.ignored_field_log import IgnoredFieldLog
from inflight.server.jobs.lines import BadLine, BatchLine, LineChecker, answered, error_of, is_batch_line, unanswered
from inflight.server.line_calls import of_a_line
from inflight.server.parsers import call_marks, shown_token_ids
from inflight.server.preprocessing.worker import Preprocessor
from inflight.server.registry import ENDPOINTS, OF_LINES
from inflight.server.tenants import ANYONE
from inflight.server.translating import RequestTranslator

_ID = re.compile(r"batch_req_([0-9]{1,15})")
_WAIT = 1.0  # seconds for a file to be read; a file never blocks


class ResumeError(ValueError):
    """The output cannot be continued; the sentence says why."""


def line_id(index: int) -> str:
    """Return the id of the answer to line `index` in OpenAI's form, whatever its custom_id."""
    return f"batch_req_{index}"


@dataclass(frozen=True, slots=True)
class _Answer:
    """An earlier answer, with what it shows of its line: prompt_tokens in our own form."""

    openai: bool
    failed: bool
    prompt_tokens: int | None = None
    custom_id: str | None = None


@dataclass(slots=True)
class Earlier:
    """Earlier answers.

    Attributes:
        answers: By the index of their line.
        whole_bytes: Of the output file; the rest is a line that was cut off.
    """

    answers: dict[int, _Answer] = field(default_factory=dict)
    whole_bytes: int = 0

    @property
    def failed(self) -> int:
        return sum(answer.failed for answer in self.answers.values())


def earlier_answers(source: Path, target: Path, prompts: PromptEncoder) -> Earlier:
    """Return the answers that `target` holds. Raises ResumeError when it is no output, or that of another input."""
    earlier = Earlier()
    if not target.exists():
        return earlier
    size = target.stat().st_size
    with target.open("rb") as file:
        for number, line in enumerate(file, 1):
            found = _recognized(line)
            if found is None:
                if earlier.whole_bytes + len(line) == size:
                    break  # the last line, which the interruption cut off
                raise ResumeError(f"{target}, line {number}, is no answer of this program; give the output it wrote.")
            index, answer = found
            if index in earlier.answers:
                raise ResumeError(
                    f"{target}, line {number}, answers line {index} again; it was not written by one run."
                )
            earlier.answers[index] = answer
            earlier.whole_bytes += len(line)
    _check_input(earlier, source, target, prompts)
    return earlier


def _recognized(line: bytes) -> tuple[int, _Answer] | None:
    try:
        data = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if type(index := data.get("index")) is int and ("error" in data or "token_ids" in data):
        tokens = data.get("prompt_tokens")
        return index, _Answer(False, "error" in data, tokens if type(tokens) is int else None)
    match = _ID.fullmatch(str(data.get("id")))
    if match is None or not {"custom_id", "response", "error"} <= set(data):
        return None
    response: Any = data["response"]
    failed = not isinstance(response, dict) or response.get("status_code") != 200
    return int(match[1]), _Answer(True, failed, custom_id=data["custom_id"])


def _check_input(earlier: Earlier, source: Path, target: Path, prompts: PromptEncoder) -> None:
    left = dict(earlier.answers)
    with source.open("rb", buffering=0) as file:
        lines, index = LineReader(file.fileno()), 0
        while left and not lines.ended:
            for number, line in lines.take(256, _WAIT):
                answer = left.pop(index, None)
                if answer is not None and not _fits(answer, line, prompts):
                    raise _another_input(target, f"its answer {index} does not fit line {number} of {source}")
                index += 1
    if left:
        raise _another_input(target, f"it answers line {max(left)}, counted from 0, but {source} has {index}")


def _another_input(target: Path, why: str) -> ResumeError:
    advice = "give the input it was made from, or leave --resume out to start over"
    return ResumeError(f"{target} belongs to another input: {why}; {advice}.")


def _fits(answer: _Answer, line: str, prompts: PromptEncoder) -> bool:
    """Return whether this may be the line that was answered: its custom id, or else the length of its prompt, is the
    same."""
    try:
        data = json_object(line)
        if answer.openai:
            own = data.get("custom_id")
            return is_batch_line(data) and (answer.custom_id is None or answer.custom_id == own)
        if answer.failed:
            return not is_batch_line(data)
        return len(parse_line(line, SamplingParams(), prompts).prompt_token_ids) == answer.prompt_tokens
    except ValueError:  # an error line answers such a line
        return answer.failed and not answer.openai


class AnswerForms:
    """Both forms of lines, for one engine."""

    def __init__(self, engine: Engine, defaults: SamplingParams, parsers: ParserChoice | None = None):
        """Prepare them. defaults: sampling settings of lines in our own form; OpenAI's form has the model's, as with a
        server. parsers: of answers in OpenAI's form."""
        self._engine, self._defaults = engine, defaults
        self._checker = LineChecker()
        self._ignored = IgnoredFieldLog()
        self._names = TokenNames(engine.tokenizer)
        # Without model names: the command line has named the model.
        limits = Limits(
            max_n=1024,
            max_prompts=2048,
            max_model_len=engine.capacity.max_model_len,
            keeps_grammars=engine.loop.grammars is not None,
            generates=engine.capacity.generates,
            pooler=engine.model.pooler,
            prompts=engine.text_prompts,
        )
        self._preprocessor = Preprocessor(engine.prompts, engine.tokenizer, limits, parsers)
        self._translator = RequestTranslator(
            encoder=engine.prompts,
            models=(),
            now=engine.loop.clock.now,
            defaults=engine.defaults,
            parsers=parsers,
            shown_token_ids=shown_token_ids(parsers, engine.tokenizer),
            call_marks=call_marks(parsers, engine.tokenizer),
            pooler=engine.model.pooler,
            adapters=engine.adapters,
        )

    def take(self, index: int, number: int, text: str) -> Line:
        """Return line `number` of the input as requests. Raises LineRefused."""
        try:
            data = json_object(text)
            if is_batch_line(data):
                return self._openai(index, number, text)
            return _OwnLine(index, number, data, self._engine, self._defaults)
        except ValueError as error:
            if not type(error).__module__.startswith("inflight."):
                raise  # a bug of ours
            raise own_refusal(index, number, str(error)) from None

    def skip(self, number: int, text: str) -> None:
        """Note a line that an earlier run answered: its custom_id is taken all the same."""
        try:
            data = json_object(text)
            if is_batch_line(data):
                self._checker.check(number, _bytes(text))
        except ValueError:
            return

    def _openai(self, index: int, number: int, text: str) -> Line:
        name = line_id(index)
        try:
            line = self._checker.check(number, _bytes(text))
        except BadLine as bad:
            answer = unanswered(name, bad.custom_id, error_of(bad.code, str(bad), bad.number))
            raise LineRefused(f"line {number}: {bad}", answer) from None
        try:
            prepared = self._preprocessor.prepared(OF_LINES[line.url], line.body)
            assert not isinstance(prepared, PreparedAnswer), "lines request generation"
            self._ignored.note(OF_LINES[line.url], prepared.ignored)
            call = of_a_line(self._translator.call(prepared, ANYONE))
        except ApiError as error:
            raise _openai_refusal(name, number, line.custom_id, error) from None
        return _OpenAILine(name, line, call, self._names)


class _OwnLine:
    parsing = None

    def __init__(self, index: int, number: int, data: dict[str, Any], engine: Engine, defaults: SamplingParams):
        """Read a line. Raises ValueErrors with a sentence."""
        entry = parse_object(data, defaults, engine.prompts)
        self._index, self._number = index, number
        self.prompts = (entry.prompt,)
        self.requests = (
            engine.prompts.request(
                str(index),
                entry.prompt_token_ids,
                entry.params,
                engine.loop.clock.now(),
                forced_output_tokens=entry.forced_output_tokens,
                **entry.placement,
            ),
        )

    def answer(self, ended: list[OutputCollector]) -> dict[str, Any]:
        output = ended[0].output()
        failure = next((one.detail for one in output.outputs if one.finish_reason == "error"), None)
        if failure is not None:
            raise own_refusal(self._index, self._number, failure)
        return output_line(self._index, output)

    def refused(self, refusal: RequestRefused) -> LineRefused:
        return own_refusal(self._index, self._number, str(refusal))


class _OpenAILine:
    def __init__(self, name: str, line: BatchLine, call: Call, names: TokenNames):
        self._name, self._line, self._call, self._names = name, line, call, names
        self.requests, self.prompts, self.parsing = call.requests, call.prompts, call.parsing

    def answer(self, ended: list[OutputCollector]) -> dict[str, Any]:
        by_id = {one.request.request_id: one for one in ended}
        collectors = {request.request_id: by_id[request.request_id] for request in self.requests}
        try:
            body = msgspec.json.decode(ResponseBuilder(self._call, collectors, self._names).answer())
        except ApiError as error:
            raise self._refusal(error) from None
        return answered(self._name, self._line.custom_id, 200, body)

    def refused(self, refusal: RequestRefused) -> LineRefused:
        return self._refusal(refused(refusal, ENDPOINTS[self._call.kind].prompt_field, self._call.form_field))

    def _refusal(self, error: ApiError) -> LineRefused:
        return _openai_refusal(self._name, self._line.number, self._line.custom_id, error)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def own_refusal(index: int, number: int, why: str) -> LineRefused:
    """Return the error of a line in our own form."""
    sentence = f"line {number}: {why}"
    return LineRefused(sentence, {"index": index, "error": sentence})


def _openai_refusal(name: str, number: int, custom_id: str | None, error: ApiError) -> LineRefused:
    return LineRefused(f"line {number}: {error.message}", answered(name, custom_id, error.status, error.body))
