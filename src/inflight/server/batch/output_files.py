"""The files that a job leaves, put together from its answers in the order of the lines.

Knows which line goes into which file. Done again after a crash, it writes the same files under the same ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence

from inflight.server.batch.data import Draft
from inflight.server.batch.files import Files
from inflight.server.batch.lines import answered, line_id, unanswered
from inflight.server.batch.records import Job, LineAnswer, StoredFile
from inflight.server.batch.store import Store

_PAGE_LINES = 256


async def assemble(job: Job, store: Store, files: Files) -> tuple[StoredFile | None, StoredFile | None]:
    """The output file (lines answered with 2xx) and the error file (the others); None for one without lines.

    They are durable, but not in the store yet. Raises OSError.
    """
    drafts: dict[str, Draft] = {}
    try:
        after = 0
        while page := await store.answers(job, after, _PAGE_LINES):
            await asyncio.to_thread(_write, job, files, drafts, page)
            after = page[-1].line
        for draft in drafts.values():
            await asyncio.to_thread(draft.publish)
    except Exception:
        for draft in drafts.values():
            draft.discard()
        raise
    found = {
        kind: files.described(draft, job.tenant, f"{job.id}_{kind}.jsonl", "batch_output")
        for kind, draft in drafts.items()
    }
    return found.get("output"), found.get("error")


def _write(job: Job, files: Files, drafts: dict[str, Draft], page: Sequence[LineAnswer]) -> None:
    for answer in page:
        kind = "output" if answer.good else "error"
        if kind not in drafts:
            digest = hashlib.sha256(f"{job.id}/{kind}".encode()).hexdigest()[:32]
            drafts[kind] = files.draft(f"file-{digest}")
        drafts[kind].write(json.dumps(_line(job, answer)).encode() + b"\n")


def _line(job: Job, answer: LineAnswer) -> dict[str, object]:
    request_id, payload = line_id(job.id, answer.line), json.loads(answer.payload)
    if answer.status is None:
        return unanswered(request_id, answer.custom_id, payload)
    return answered(request_id, answer.custom_id, answer.status, payload)
