"""Read an earlier run's output file: the lines it answered, and whether they are this input's. Both forms are known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight.cli.files import LineReader
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.lines import json_object, parse_line
from inflight.frontend.prompts import PromptEncoder
from inflight.server.jobs.lines import is_batch_line

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
        """Return the number of error lines."""
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
