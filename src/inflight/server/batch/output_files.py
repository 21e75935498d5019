"""The files that a job leaves, put together from its answers in the order of the lines.

Knows which line goes into which file. Done again after a crash, it writes the same files under the same ids.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass

from inflight.server.batch.draft import Draft
from inflight.server.batch.file_id import output_file_id
from inflight.server.batch.files import Files
from inflight.server.batch.lines import answered, error_of, line_id, unanswered
from inflight.server.batch.records import Job, LineAnswer, StoredFile
from inflight.server.batch.store import Store

_PAGE_LINES = 256


@dataclass(slots=True)
class Outputs:
    """The files of a job, on the disk and not in the store yet; None for one without lines."""

    output: StoredFile | None
    errors: StoredFile | None
    drafts: list[Draft]

    @property
    def files(self) -> list[StoredFile]:
        return [file for file in (self.output, self.errors) if file is not None]


async def assemble(job: Job, store: Store, files: Files) -> Outputs:
    """The output file (lines answered with 2xx) and the error file (the others). Raises OSError, and leaves nothing."""
    drafts: dict[str, Draft] = {}
    try:
        after = 0
        while page := await store.answers(job, after, _PAGE_LINES):
            lines = await asyncio.to_thread(_lines, job, page)
            await _begin(job, store, files, drafts, {kind for kind, _ in lines})
            await asyncio.to_thread(_write, drafts, lines)
            after = page[-1].line
        for draft in drafts.values():
            await asyncio.to_thread(draft.seal)
    except Exception:
        await files.abandon(drafts.values())
        raise
    described = {
        kind: files.described(draft, job.tenant, f"{job.id}_{kind}.jsonl", "batch_output")
        for kind, draft in drafts.items()
    }
    return Outputs(described.get("output"), described.get("error"), list(drafts.values()))


async def _begin(job: Job, store: Store, files: Files, drafts: dict[str, Draft], kinds: Set[str]) -> None:
    for kind in sorted(kinds - drafts.keys()):
        file_id = output_file_id(job.id, kind)
        await store.begin_files([file_id])
        drafts[kind] = await asyncio.to_thread(files.draft, file_id)


def _write(drafts: dict[str, Draft], lines: list[tuple[str, bytes]]) -> None:
    for kind, line in lines:
        drafts[kind].write(line)


def _lines(job: Job, page: Sequence[LineAnswer]) -> list[tuple[str, bytes]]:
    """Each with the kind of file that it belongs in."""
    return [(kind, line.encode() + b"\n") for kind, line in (_line(job, answer) for answer in page)]


def _line(job: Job, answer: LineAnswer) -> tuple[str, str]:
    request_id = line_id(job.id, answer.line)
    try:
        payload = json.loads(answer.payload)
        if answer.status is None:
            return "error", json.dumps(unanswered(request_id, answer.custom_id, payload))
        kind = "output" if answer.good else "error"
        return kind, json.dumps(answered(request_id, answer.custom_id, answer.status, payload))
    except (ValueError, TypeError):  # a damaged byte of the database; the other lines are none the worse
        message = "The answer to the line was damaged in the data directory; send the line again."
        custom_id = answer.custom_id if isinstance(answer.custom_id, str) else None
        return "error", json.dumps(unanswered(request_id, custom_id, error_of("damaged_answer", message, answer.line)))
