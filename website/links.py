"""Links of texts that stand elsewhere on the site than in the checkout.

A link to a text that is on the site leads to it there; one to another file of the checkout, which the site does not
have, becomes the file's path as code; one to nothing is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from website.errors import WebsiteError

_FENCE = re.compile(r"^(```|~~~)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_WITH_SCHEME = re.compile(r"[a-z]+:")


class Links:
    def __init__(self, root: Path, places: Mapping[str, str]):
        """places: path in the checkout → path on the site, of every text that is there."""
        self._root, self._places = root, places

    def rewritten(self, text: str, source: str) -> str:
        """A text of the checkout, as it is to stand on the site."""
        lines, fenced = [], False
        for line in text.splitlines(keepends=True):
            if _FENCE.match(line.lstrip()):
                fenced = not fenced
            lines.append(line if fenced else _LINK.sub(lambda found: self._link(found, source), line))
        return "".join(lines)

    def _link(self, found: re.Match[str], source: str) -> str:
        picture, words, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or _WITH_SCHEME.match(target):
            return found[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        here = posixpath.dirname(self._places[source])
        if named in self._places:
            return f"{picture}[{words}]({posixpath.relpath(self._places[named], here or '.')}{hash_}{anchor})"
        if named.startswith("docs/") and (self._root / named).is_file():  # a picture, which is copied beside the pages
            return f"{picture}[{words}]({posixpath.relpath(named.removeprefix('docs/'), here or '.')}{hash_}{anchor})"
        if not (self._root / named).exists():
            raise WebsiteError(f"{source} links to {target}, and there is no {named}; mend the link.")
        shown = f"`{named}`"
        return shown if words.strip("`").rstrip("/") in (named, named + "/") else f"{words} ({shown})"
