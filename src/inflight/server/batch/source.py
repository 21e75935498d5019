"""The input of one job, read a page at a time with the certainty that it is what was stored.

Knows the file's row, and how often a disk that refuses it is asked; what its lines are, `input_file` knows. A file that
cannot be read is its job's misfortune: the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from io import BufferedReader
from typing import TypeVar

from inflight.server.batch.files import Files, Unreadable
from inflight.server.batch.input_file import InputFile, count_lines
from inflight.server.batch.lines import BadLine, BatchLine
from inflight.server.batch.persistence import InputGone, Persistence
from inflight.server.batch.records import Job, StoredFile
from inflight.server.batch.store import Missing, Store

T = TypeVar("T")

PAGE_LINES = 64  # read ahead of each job
MOST_TRIES = 5  # in a row that the disk refuses


class JobInput:
    def __init__(self, job: Job, file: StoredFile, files: Files, storage: Persistence, longest_line: int):
        """file: the row of the job's input. longest_line: bytes."""
        self._file, self._files, self._storage, self._longest = file, files, storage, longest_line
        self._lines = InputFile(job.endpoint, longest_line)
        self._refused = 0  # tries in a row

    @property
    def ended(self) -> bool:
        """Every line was given."""
        return self._lines.ended

    async def count(self, most: int) -> int:
        """Lines, one beyond `most` where there are more. Raises InputGone."""
        return await self._patiently(lambda file: count_lines(file, self._longest, most))

    async def page(self, without: Container[int]) -> list[BatchLine | BadLine]:
        """The next lines, without those numbers. Raises InputGone where the content is not what was stored, OSError
        where it is to be tried again."""
        return await self._read(lambda file: self._lines.page(file, PAGE_LINES, without))

    async def page_as_it_is(self, without: Container[int]) -> list[BatchLine | BadLine]:
        """The same of whatever is there, tried again. Raises InputGone where nothing is."""
        return await self._patiently(lambda file: self._lines.page(file, PAGE_LINES, without), checked=False)

    async def _patiently(self, read: Callable[[BufferedReader], T], *, checked: bool = True) -> T:
        while True:
            try:
                return await self._read(read, checked=checked)
            except OSError:
                await self._storage.wait()

    async def _read(self, read: Callable[[BufferedReader], T], *, checked: bool = True) -> T:
        def once() -> T:
            with self._files.opened(self._file, checked=checked) as file:
                return read(file)

        try:
            result = await asyncio.to_thread(once)
        except Unreadable as fault:
            raise InputGone(f"{fault}; upload it again.") from None
        except OSError as error:
            self._refused += self._storage.paused is None  # else the whole disk may be away, and come back
            if self._refused < MOST_TRIES:
                raise
            sentence = f"The content of the file {self._file.id} cannot be read ({error.strerror}); upload it again."
            raise InputGone(sentence) from None
        self._refused = 0
        return result


async def job_input(job: Job, store: Store, files: Files, storage: Persistence, longest_line: int) -> JobInput:
    """From its first line on. Raises InputGone where the store does not know the file."""
    try:
        file = await storage.durably(partial(store.file, job.input_file_id, job.tenant))
    except Missing:
        raise InputGone(f"The input file {job.input_file_id} is not known; upload it again.") from None
    return JobInput(job, file, files, storage, longest_line)
