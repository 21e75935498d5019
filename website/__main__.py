"""`python -m website [--no-runs] FOLDER`: pages and mkdocs' settings into FOLDER, which is emptied first."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from website.options_pages import with_verbs
from website.pages import ROOT, write_pages


def main(arguments: list[str]) -> int:
    runs = "--no-runs" not in arguments
    arguments = [one for one in arguments if one != "--no-runs"]
    if len(arguments) != 1:
        print("python -m website [--no-runs] FOLDER: where the pages are to be put together.", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    docs.mkdir(parents=True)
    written = write_pages(docs, runs)
    settings = (ROOT / "website" / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(with_verbs(settings), encoding="utf-8")
    print(f"{folder}: {written} pages", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
