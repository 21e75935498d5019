"""The files that a job leaves, put together from its answers in the order of the lines.

Knows which line goes into which file. Done again after a crash, it writes the same files under the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass

import msgspec

from inflight.server.batch.files import Files
from inflight.server.batch.lines import answered, error_of, line_id, unanswered
from inflight.server.batch.records import Job, LineAnswer, StoredFile, output_file_id
from inflight.server.batch.store import Store
from inflight.server.batch.temp_file import TempFile

_PAGE_LINES, _PAGE_BYTES = 256, 4 << 20  # that are put together at once
_CHECKED = msgspec.json.Decoder(msgspec.Raw)
_encoded = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Outputs:
    """The files of a job, on the disk and not in the store yet; None for one without lines."""

    output: StoredFile | None
    errors: StoredFile | None
    temp_files: list[TempFile]

    @property
    def files(self) -> list[StoredFile]:
        return [file for file in (self.output, self.errors) if file is not None]


async def assemble(job: Job, store: Store, files: Files) -> Outputs:
    """The output file (lines answered with 2xx) and the error file (the others). Raises OSError, and leaves nothing."""
    temp_files: dict[str, TempFile] = {}
    try:
        after = 0
        while page := await store.answers(job, after, _PAGE_LINES, _PAGE_BYTES):
            lines = await asyncio.to_thread(_lines, job, page)
            await _begin(job, store, files, temp_files, {kind for kind, _ in lines})
            await asyncio.to_thread(_write, temp_files, lines)
            after = page[-1].line
        for temp_file in temp_files.values():
            await asyncio.to_thread(temp_file.seal)
    except Exception:
        await files.abandon(temp_files.values())
        raise
    described = {
        kind: files.described(temp_file, job.tenant, f"{job.id}_{kind}.jsonl", "batch_output")
        for kind, temp_file in temp_files.items()
    }
    return Outputs(described.get("output"), described.get("error"), list(temp_files.values()))


async def _begin(job: Job, store: Store, files: Files, temp_files: dict[str, TempFile], kinds: Set[str]) -> None:
    for kind in sorted(kinds - temp_files.keys()):
        file_id = output_file_id(job.id, kind)
        await store.begin_files([file_id])
        temp_files[kind] = await asyncio.to_thread(files.temp_file, file_id)


def _write(temp_files: dict[str, TempFile], lines: list[tuple[str, bytes]]) -> None:
    for kind, line in lines:
        temp_files[kind].write(line)


def _lines(job: Job, page: Sequence[LineAnswer]) -> list[tuple[str, bytes]]:
    """Each with the kind of file that it belongs in."""
    return [(kind, line + b"\n") for kind, line in (_line(job, answer) for answer in page)]


def _line(job: Job, answer: LineAnswer) -> tuple[str, bytes]:
    request_id = line_id(job.id, answer.line)
    custom_id = answer.custom_id if isinstance(answer.custom_id, str) else None
    try:
        if custom_id != answer.custom_id:
            raise TypeError("custom_id is no text")
        # Checked, and put in as it is: made objects and JSON again, an answer of 30 MB stops everybody for a second.
        payload = _CHECKED.decode(answer.payload)
        if answer.status is None:
            return "error", _encoded(unanswered(request_id, custom_id, payload))
        kind = "output" if answer.good else "error"
        return kind, _encoded(answered(request_id, custom_id, answer.status, payload))
    except (ValueError, TypeError):  # a damaged byte of the database; the other lines are none the worse
        message = "The answer to the line was damaged in the data directory; send the line again."
        return "error", _encoded(unanswered(request_id, custom_id, error_of("damaged_answer", message, answer.line)))
