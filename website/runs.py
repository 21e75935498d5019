"""Command lines on a page that are run when the site is made, and what they print is put below them.

A block of shell text behind `<!-- run -->` is run; `<!-- run: WORDS -->` says what must be found in the answer, so that
a page cannot show output that no longer comes. Lines begin with `inflight`; of an answer with a diagnosis only that is
shown.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from website.errors import WebsiteError

_BLOCK = re.compile(r"<!-- run(?:: (?P<expected>[^>]+?))? -->\n(?P<block>```sh\n(?P<body>.*?)\n```\n)", re.DOTALL)
_DIAGNOSIS = "\nDiagnosis\n"
_SECONDS = 900
_WIDTH = 96


def with_runs(text: str, source: str) -> str:
    """A page with the answers of its command lines. Raises WebsiteError when one fails or says something else."""
    if "<!-- run" not in text:
        return text
    with tempfile.TemporaryDirectory() as folder:
        return _BLOCK.sub(lambda found: _shown(found, source, Path(folder)), text)


def _shown(found: re.Match[str], source: str, folder: Path) -> str:
    answer = ""
    for line in found["body"].replace("\\\n", " ").splitlines():
        answer = _answer(line, source, folder)
    if _DIAGNOSIS in answer:
        answer = answer.partition(_DIAGNOSIS)[2]
    expected = found["expected"]
    if expected and expected not in answer:
        raise WebsiteError(f"{source}: {found['body']!r} does not say {expected!r} any more, but:\n{answer}")
    lines = (wrapped for line in answer.strip("\n").splitlines() for wrapped in _wrapped(line))
    return "\n".join([found["block"], "```text", *lines, "```", ""])


def _wrapped(line: str) -> list[str]:
    """Break lines that are longer than the page, after their indentation."""
    indent = len(line) - len(line.lstrip(" -→"))
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * indent, drop_whitespace=True) or [""]


def _answer(line: str, source: str, folder: Path) -> str:
    """Return standard output, or standard error where that is empty."""
    words = shlex.split(line)
    if not words or words[0] != "inflight":
        raise WebsiteError(f"{source}: only inflight is run for a page, not {line!r}.")
    ended = subprocess.run(
        [sys.executable, "-m", "inflight.cli", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        raise WebsiteError(f"{source}: {line!r} ended with {ended.returncode}:\n{ended.stderr}")
    return ended.stdout or ended.stderr
