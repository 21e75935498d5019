"""The lines of a job's file: what is given and counted, however many of them are empty."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from inflight.server.jobs.line_files import InputFile, count_lines

from .rig import jsonl, request_line

LONGEST = 12

blanks = st.sampled_from([1, 2, 3, 8191, 8192, 20000]).map(lambda count: b"\n" * count)
pieces = st.one_of(blanks, st.sampled_from([b" \t\r\n", b"x\n", b"\xef\xbb\xbf", b" " * 20, b"y" * 20, b"\r\n", b"z"]))


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
def test_empty_lines_are_passed_over_and_counted_in_the_numbers(content: bytes, most: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        lines, given_lines = InputFile("/v1/completions", LONGEST), []
        while not lines.is_at_end:
            with path.open("rb") as file:
                given_lines += [line.number for line in lines.page(file, most)]
        assert given_lines == plain(content)
        for counted, bound in ((min(len(given_lines), most + 1), most), (len(given_lines), 10**6)):
            with path.open("rb") as file:
                assert count_lines(file, LONGEST, bound) == counted


def test_of_the_lines_that_were_read_little_is_held(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(jsonl(*(request_line(f"{number} " + "é" * 400) for number in range(100))))
    lines = InputFile("/v1/completions", 10_000)
    with path.open("rb") as file:
        lines.page(file, 90)
        assert sum(len(held) for held in lines._checker._seen) == 90 * 16
        while not lines.is_at_end:
            lines.page(file, 90)
    assert not lines._checker._seen, "nothing, when all were read"
