"""The input file of a job, read a page of lines at a time, and the files of its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from itertools import islice
from typing import TypeVar

import msgspec

from inflight.server.errors import ApiError
from inflight.server.jobs.files import Content, Files, StoredFile, Unreadable
from inflight.server.jobs.lines import BadLine, BatchLine, LineChecker, answered, error_of, line_id, unanswered
from inflight.server.jobs.storage import Retries, StorageError, storage_errors
from inflight.server.jobs.store import Job, Jobs, LineAnswer

T = TypeVar("T")

PAGE_LINES, PAGE_BYTES = 64, 1 << 18  # of the input, read at once; a page ends with the line that reaches its bytes
MAX_TRIES = 5  # in a row in which the disk refuses one input, until its job fails
_OUTPUT_LINES, _OUTPUT_BYTES = 256, 4 << 20  # of answers, written at once
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode


class InputGone(LookupError):
    """The input of a job cannot be read, and will not be; the sentence says why."""


# -- input -----------------------------------------------------------------------------------------------------------
class JobInput:
    """The lines of a job's stored input in order; `is_at_end` after the last. Empty lines count, but are left out.

    Methods that read raise InputGone where the content cannot be read, however often it is tried.
    """

    def __init__(self, endpoint: str, file: StoredFile, files: Files, retries: Retries, max_line: int):
        """max_line: bytes; a longer line is a bad one, and is never in memory whole."""
        self._endpoint, self._max_line = endpoint, max_line
        self._file, self._files, self._retries = file, files, retries
        self._checker = LineChecker(endpoint)
        self._offset = self._number = 0
        self._refused = 0  # tries in a row
        self.is_at_end = False

    @classmethod
    async def of(cls, job: Job, jobs: Jobs, files: Files, retries: Retries, max_line: int) -> JobInput:
        """Find the input of the job. Raises InputGone."""
        try:
            file = await retries.run(partial(jobs.input_file, job))
        except ApiError:
            raise InputGone(f"The input file {job.input_file_id} is not known; upload it again.") from None
        return cls(job.endpoint, file, files, retries, max_line)

    async def count(self, max_lines: int) -> int:
        """Return the number of lines that `page` gives, at most one beyond max_lines."""

        def read(file: BufferedReader) -> int:
            given = (number for number, raw in _raw_lines(file, 0, self._max_line) if raw is None or raw.strip())
            return sum(1 for _ in islice(given, max_lines + 1))

        return await self._read(read)

    async def page(
        self, without: Container[int] = (), *, max_lines: int = PAGE_LINES, checked: bool = True
    ) -> list[BatchLine | BadLine]:
        """Return the next lines but those numbers: at most max_lines, perhaps none.

        Args:
            checked: Only of the content that was stored; otherwise of any content that is there.
        """
        return await self._read(lambda file: self._page(file, max_lines, without), checked=checked)

    def _page(self, file: BufferedReader, max_lines: int, without: Container[int]) -> list[BatchLine | BadLine]:
        lines: list[BatchLine | BadLine] = []
        file.seek(self._offset)
        is_at_end, number = True, self._number
        for number, raw in _raw_lines(file, self._number, self._max_line):
            if raw is None or raw.strip():
                line = self._checked(number, raw)  # also of lines that are left out: their custom ids are taken
                if number not in without:
                    lines.append(line)
            if len(lines) >= max_lines or file.tell() - self._offset >= PAGE_BYTES:
                is_at_end = False
                break
        # Only now, so that a page that could not be read whole is read again.
        self._offset, self._number, self.is_at_end = file.tell(), number, is_at_end
        if is_at_end:
            self._checker = LineChecker(self._endpoint)  # the ids that it has seen are needed no more
        return lines

    def _checked(self, number: int, raw: bytes | None) -> BatchLine | BadLine:
        if raw is None:
            return BadLine(number, "line_too_long", f"The line has more than {self._max_line} bytes; shorten it.")
        try:
            return self._checker.check(number, raw)
        except BadLine as bad:
            return bad

    async def _read(self, read: Callable[[BufferedReader], T], *, checked: bool = True) -> T:
        """Read in a thread, with the file open no longer than that, so that any number of jobs may wait."""

        def once() -> T:
            with self._files.opened(self._file, checked=checked) as file, storage_errors():
                return read(file)

        while True:
            try:
                result = await asyncio.to_thread(once)
            except Unreadable as fault:
                raise InputGone(f"{fault.cause}; upload it again.") from None
            except StorageError as error:
                self._refused += self._retries.pause is None  # else the whole disk may be away, and come back
                if self._refused >= MAX_TRIES:
                    why = getattr(error.__cause__, "strerror", None) or error.message
                    sentence = f"The content of the file {self._file.id} cannot be read ({why}); upload it again."
                    raise InputGone(sentence) from None
                await self._retries.wait()
            else:
                self._refused = 0
                return result


def _raw_lines(file: BufferedReader, number: int, max_line: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines behind line `number` with their numbers; None for one that is too long.

    Of empty lines in a row perhaps only the first: there may be millions, so those in the file's buffer are skipped.
    """
    if number == 0 and file.peek(len(_BYTE_ORDER_MARK)).startswith(_BYTE_ORDER_MARK):
        file.read(len(_BYTE_ORDER_MARK))
    while line := file.readline(max_line + 2):
        number += 1
        if len(line.rstrip(b"\r\n")) <= max_line:
            yield number, line
            if not line.strip():
                ahead = file.peek()[:max_line]
                blank = ahead[: len(ahead) - len(ahead.lstrip())]
                file.read(blank.rfind(b"\n") + 1)
                number += blank.count(b"\n")
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)
        yield number, None


# -- output ----------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Outputs:
    """The files that a job leaves: lines answered with 2xx, and the others. Done again, they are made anew."""

    job: Job
    files: Files
    contents: dict[str, Content] = field(default_factory=dict)  # by kind
    lines: int = 0  # written
    failed: int = 0  # of them without an answer

    async def write(self, jobs: Jobs, rest: AsyncIterator[BadLine]) -> dict[str, StoredFile]:
        """Write each line in its order into one of the two files.

        Args:
            rest: The lines without an answer, in order.

        Returns:
            The files by kind (output, error), on the disk, whose rows `Jobs.end` stores.
        """
        entries, nbytes = list[LineAnswer](), 0
        async for entry in _merged(self._answers(jobs), self._errors(rest)):
            entries.append(entry)
            nbytes += len(entry.payload)
            if len(entries) >= _OUTPUT_LINES or nbytes >= _OUTPUT_BYTES:
                await self._write(entries)
                entries, nbytes = [], 0
        await self._write(entries)
        for content in self.contents.values():
            await asyncio.to_thread(content.seal)
        return {
            kind: self.files.described(content, self.job.tenant, f"{self.job.id}_{kind}.jsonl", "batch_output")
            for kind, content in self.contents.items()
        }

    async def _answers(self, jobs: Jobs) -> AsyncIterator[LineAnswer]:
        after = 0
        while page := await jobs.answers(self.job, after, _OUTPUT_LINES, _OUTPUT_BYTES):
            for answer in page:
                yield answer
            after = page[-1].line

    async def _errors(self, rest: AsyncIterator[BadLine]) -> AsyncIterator[LineAnswer]:
        async for bad in rest:
            self.failed += 1
            yield line_error(self.job, bad)

    async def publish(self) -> None:
        """After the rows of the files are stored."""
        for content in self.contents.values():
            await asyncio.to_thread(content.publish)

    async def abandon(self) -> None:
        await self.files.abandon(self.contents.values())

    async def _write(self, entries: list[LineAnswer]) -> None:
        """Write each entry into the file of its kind."""
        lines = await asyncio.to_thread(lambda: [_line(self.job, one) for one in entries])
        for kind in sorted({kind for kind, _ in lines} - self.contents.keys()):
            self.contents[kind] = await self.files.begin(self.job.tenant)
        self.lines += len(lines)
        await asyncio.to_thread(self._write_lines, lines)

    def _write_lines(self, lines: list[tuple[str, bytes]]) -> None:
        for kind, line in lines:
            self.contents[kind].write(line)


async def _merged(first: AsyncIterator[LineAnswer], second: AsyncIterator[LineAnswer]) -> AsyncIterator[LineAnswer]:
    """Yield the entries of both in the order of their lines."""
    one, other = await anext(first, None), await anext(second, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.line < other.line):
            assert one is not None
            yield one
            one = await anext(first, None)
        else:
            yield other
            other = await anext(second, None)


def line_error(job: Job, bad: BadLine) -> LineAnswer:
    """Return the entry for a line that is not answered."""
    payload = json.dumps(error_of(bad.code, str(bad), bad.number))
    return LineAnswer(job=job.number, line=bad.number, custom_id=bad.custom_id, status=None, payload=payload)


def _line(job: Job, answer: LineAnswer) -> tuple[str, bytes]:
    """Return the kind of the file that the entry belongs to, and its line."""
    request_id, kind = line_id(job.id, answer.line), "error"
    try:
        # Checked, and put in as it is: made objects and JSON again, an answer of 30 MB would take a second.
        payload = _decode_raw(answer.payload)
    except (ValueError, TypeError):  # a damaged byte of the database; the other lines are none the worse
        message = "The answer to the line was damaged in the data directory; send the line again."
        line = unanswered(request_id, answer.custom_id, error_of("damaged_answer", message, answer.line))
    else:
        if answer.status is None:
            line = unanswered(request_id, answer.custom_id, payload)
        else:
            kind = "output" if answer.is_good else "error"
            line = answered(request_id, answer.custom_id, answer.status, payload)
    return kind, _encode(line) + b"\n"
