"""What an earlier run has left in an output file: which lines are answered, and whether they are this input's.

Knows both output forms. A line that was cut off is no answer; nothing is cut before all the rest has been recognised.
"""

from __future__ import annotations

import json
import os
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
_WAIT = 1.0  # seconds for a file to be read; a file never waits


class ResumeError(ValueError):
    """The output cannot be gone on with; the sentence says why."""


def line_id(index: int) -> str:
    """The id of the answer to line `index` in OpenAI's form: it says which line that is, whatever its custom_id."""
    return f"batch_req_{index}"


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer that stays. The rest is what it says of its line, where it does: prompt_tokens in our own form."""

    openai: bool
    failed: bool
    prompt_tokens: int | None = None
    custom_id: str | None = None


@dataclass(slots=True)
class Earlier:
    """answers: by the index of their line. whole_bytes: of the output file; what follows was cut off."""

    answers: dict[int, _Kept] = field(default_factory=dict)
    whole_bytes: int = 0

    @property
    def failed(self) -> int:
        return sum(answer.failed for answer in self.answers.values())


def earlier_answers(source: Path, target: Path, prompts: PromptEncoder) -> Earlier:
    """Raises ResumeError when the output is no output, or that of another input."""
    earlier = Earlier()
    if not target.exists():
        return earlier
    with target.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(file, 1):
            found = _recognised(line)
            if found is None:
                if file.tell() == size:
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


def _recognised(line: bytes) -> tuple[int, _Kept] | None:
    try:
        data = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if type(index := data.get("index")) is int and ("error" in data or "token_ids" in data):
        tokens = data.get("prompt_tokens")
        return index, _Kept(False, "error" in data, tokens if type(tokens) is int else None)
    match = _ID.fullmatch(str(data.get("id")))
    if match is None or not {"custom_id", "response", "error"} <= set(data):
        return None
    return int(match[1]), _Kept(True, _failed(data), custom_id=data["custom_id"])


def _failed(data: dict[str, Any]) -> bool:
    response = data["response"]
    return not isinstance(response, dict) or response.get("status_code") != 200


def _check_input(earlier: Earlier, source: Path, target: Path, prompts: PromptEncoder) -> None:
    left = dict(earlier.answers)
    with source.open("rb", buffering=0) as file:
        lines, index = LineReader(file.fileno()), 0
        while left and not lines.ended:
            for number, line in lines.take(256, _WAIT):
                answer = left.pop(index, None)
                if answer is not None and not _fits(answer, line, prompts):
                    raise _another_input(target, f"its answer {index} is not one to line {number} of {source}")
                index += 1
    if left:
        raise _another_input(target, f"it answers line {max(left)}, counted from 0, but {source} has {index}")


def _another_input(target: Path, why: str) -> ResumeError:
    advice = "give the input it was made of, or leave --resume out to start anew"
    return ResumeError(f"{target} belongs to another input: {why}; {advice}.")


def _fits(answer: _Kept, line: str, prompts: PromptEncoder) -> bool:
    """Whether this may be the line that was answered: its custom id, or else the length of its prompt, is the same."""
    try:
        data = json_object(line)
        if answer.openai:
            own = data.get("custom_id")
            return is_batch_line(data) and (answer.custom_id is None or answer.custom_id == own)
        if answer.failed:
            return not is_batch_line(data)
        return len(parse_line(line, SamplingParams(), prompts).prompt_token_ids) == answer.prompt_tokens
    except ValueError:  # nothing to be compared: an error is what such a line is answered with
        return answer.failed and not answer.openai
