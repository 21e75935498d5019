"""The lines of a job's file: what is given and counted, however many of them are empty."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from inflight.server.jobs.files import StoredFile
from inflight.server.jobs.line_files import JobInput
from inflight.server.jobs.storage import Retries

from .rig import jsonl, request_line

LONGEST = 12

blanks = st.sampled_from([1, 2, 3, 8191, 8192, 20000]).map(lambda count: b"\n" * count)
pieces = st.one_of(blanks, st.sampled_from([b" \t\r\n", b"x\n", b"\xef\xbb\xbf", b" " * 20, b"y" * 20, b"\r\n", b"z"]))


def input_of(path: Path, max_line: int) -> JobInput:
    files: Any = SimpleNamespace(opened=lambda file, checked: path.open("rb"))
    stored = StoredFile(id="file-1", tenant="", filename="", purpose="batch", bytes=0, created_at=0)
    return JobInput("/v1/completions", stored, files, Retries(lambda pause: None, seconds=0.0), max_line)


def plain(content: bytes) -> list[int]:
    """Numbers of the lines that are not empty, or too long to be known as empty."""
    found = []
    for number, line in enumerate(content.split(b"\n"), 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if line.strip() or len(line.rstrip(b"\r")) > LONGEST:
            found.append(number)
    return found


@example(b"\xef\xbb\xbf" + b"z" * LONGEST + b" \n", 1)  # the mark is no part of the line that is too long, or not
@given(st.lists(pieces, max_size=30).map(b"".join), st.integers(1, 5))
def test_empty_lines_are_passed_over_and_counted_in_the_numbers(content: bytes, size: int) -> None:
    async def read(path: Path) -> None:
        lines, given_lines = input_of(path, LONGEST), []
        while not lines.is_at_end:
            given_lines += [line.number for line in await lines.page(max_lines=size)]
        assert given_lines == plain(content)
        for counted, bound in ((min(len(given_lines), size + 1), size), (len(given_lines), 10**6)):
            assert await lines.count(bound) == counted

    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        asyncio.run(read(path))


def test_of_the_lines_that_were_read_little_is_held(tmp_path: Path) -> None:
    async def read() -> None:
        lines = input_of(path, 10_000)
        await lines.page(max_lines=90)
        assert sum(len(digest) for digest in lines._checker._seen) == 90 * 16
        while not lines.is_at_end:
            await lines.page(max_lines=90)
        assert not lines._checker._seen, "nothing, when all were read"

    path = tmp_path / "file"
    path.write_bytes(jsonl(*(request_line(f"{number} " + "é" * 400) for number in range(100))))
    asyncio.run(read())
