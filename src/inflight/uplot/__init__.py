"""uPlot, which draws the charts of the live page and of reports: its script, its style sheet and its licence, as they
were released, in this one place."""

from pathlib import Path

VERSION = "1.6.32"
FOLDER = Path(__file__).parent
SCRIPT, STYLE, LICENCE = "uPlot.js", "uPlot.css", "uPlot.LICENSE.txt"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def notice() -> str:
    """The licence as a comment of a script: it is to be part of every copy, and a page that holds the script is one."""
    return f"/* uPlot {VERSION}\n{text_of(LICENCE)}\n*/"
