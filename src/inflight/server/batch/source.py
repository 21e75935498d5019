"""The input of one job, read a page at a time with the certainty that it is what was stored.

Knows the file's row and its length; what its lines are, `input_file` knows. Patient with the disk, as `persistence` is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import TypeVar

from inflight.server.batch.files import Files, no_content, other_length
from inflight.server.batch.input_file import InputFile, count_lines
from inflight.server.batch.lines import BadLine, BatchLine
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import Job, StoredFile
from inflight.server.batch.store import Missing, Store

T = TypeVar("T")

PAGE_LINES = 64  # read ahead of each job


class JobInput:
    def __init__(self, job: Job, file: StoredFile, files: Files, storage: Persistence, longest_line: int):
        """file: the row of the job's input. longest_line: bytes."""
        self._file, self._files, self._storage, self._longest = file, files, storage, longest_line
        self._lines = InputFile(files.path(file.id), job.endpoint, longest_line)

    @property
    def ended(self) -> bool:
        """Every line was given."""
        return self._lines.ended

    async def count(self, most: int) -> int:
        """Lines, one beyond `most` where there are more. Raises InputGone."""
        return await self._reading(partial(count_lines, self._files.path(self._file.id), self._longest, most))

    async def page(self, without: Container[int]) -> list[BatchLine | BadLine]:
        """The next lines, without those numbers. Raises InputGone where the content is not what was stored."""
        return await self._reading(partial(self._lines.page, PAGE_LINES, without))

    async def page_as_it_is(self, without: Container[int]) -> list[BatchLine | BadLine]:
        """The same of whatever is there. Raises InputGone where nothing is."""
        return await self._reading(partial(self._lines.page, PAGE_LINES, without), checked=False)

    async def _reading(self, read: Callable[[], T], *, checked: bool = True) -> T:
        async def once() -> T:
            return await asyncio.to_thread(self._read, read, checked)

        return await self._storage.durably(once)

    def _read(self, read: Callable[[], T], checked: bool) -> T:
        file = self._file
        try:
            if checked and (there := self._files.path(file.id).stat().st_size) != file.bytes:
                raise InputGone(f"{other_length(file, there)}; upload it again.")
            return read()
        except FileNotFoundError:
            raise InputGone(f"{no_content(file)}; upload it again.") from None


async def job_input(job: Job, store: Store, files: Files, storage: Persistence, longest_line: int) -> JobInput:
    """From its first line on. Raises InputGone where the store does not know the file."""
    try:
        file = await storage.durably(partial(store.file, job.input_file_id, job.tenant))
    except Missing:
        raise InputGone(f"The input file {job.input_file_id} is not known; upload it again.") from None
    return JobInput(job, file, files, storage, longest_line)
