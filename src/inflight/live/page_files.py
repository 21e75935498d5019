"""Read the live page's files, bundle them for the server, and write a page as one file that needs no server."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inflight import page_policy, uplot
from inflight.live.frames import Frame, Hello, encode

_FOLDERS = (Path(__file__).parent / "page", uplot.FOLDER)
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
}
STYLES = (uplot.STYLE, "live.css")
SCRIPTS = (
    uplot.SCRIPT,
    "format.js",
    "account.js",
    "colours.js",
    "history.js",
    "batch.js",
    "memory.js",
    "charts.js",
    "panels.js",
    "request.js",
    "close.js",
    "requests.js",
    "run.js",
    "feeds.js",
    "page.js",
)


BUNDLES = {"index.bundle.js": "index.html", "playground.bundle.js": "playground.html"}  # all scripts of a page
_STYLE = re.compile(r'<link rel="stylesheet" href="ui/([^"]+)">\n?')
_SCRIPT = re.compile(r'<script defer src="ui/([^"]+)"></script>\n?')


class PageFile(NamedTuple):
    """A file that the server sends.

    Attributes:
        gzipped: The content, compressed.
        etag: Weak, valid for both forms.
        style: For a page, the hash of its inline styles, which its content security policy allows.
    """

    content: bytes
    gzipped: bytes
    media_type: str
    etag: str
    style: str = ""


@cache
def page_file(name: str) -> PageFile:
    """Return a file of the page, or a bundle. Raises KeyError for an unknown name."""
    if name in BUNDLES:
        scripts = _SCRIPT.findall(text_of(BUNDLES[name]))
        return _made(b"\n".join(page_file(one).content for one in scripts), ".js")
    files = {one.name: one for folder in _FOLDERS for one in folder.iterdir() if one.suffix in _TYPES}
    path = files[name]
    return _made(path.read_bytes(), path.suffix)


@cache
def served_page(name: str, head: str = "") -> PageFile:
    """Return a page with inline styles, so that it is drawn as soon as it is received, and one file of scripts.

    Args:
        name: Of the page.
        head: HTML to add to its head.
    """
    text = text_of(name).replace("<!-- head -->", f"<!-- head -->\n{head}", 1)
    style = "\n".join(text_of(one) for one in _STYLE.findall(text))
    bundle = next(bundle for bundle, page in BUNDLES.items() if page == name)
    links = iter([f"<style>{style}</style>\n"])
    scripts = iter([f'<script defer src="ui/{bundle}"></script>\n'])
    text = _STYLE.sub(lambda found: next(links, ""), text)
    text = _SCRIPT.sub(lambda found: next(scripts, ""), text)
    return _made(text.encode(), ".html")._replace(style=page_policy.hash_source(style))


def _made(content: bytes, suffix: str) -> PageFile:
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'
    return PageFile(content, gzip.compress(content, 9, mtime=0), _TYPES[suffix], etag)


def text_of(name: str) -> str:
    return page_file(name).content.decode()


def whole_page(title: str, runs: Iterable[tuple[Hello, Iterable[Frame]]]) -> str:
    """Return a page that contains its runs and loads nothing from the network; several runs are shown side by side."""
    script = "\n".join((uplot.notice(), *map(text_of, SCRIPTS)))
    style = "\n".join(map(text_of, STYLES))
    data = "\n".join(
        f'<script type="application/x-inflight-frames">{_packed(hello, frames)}</script>' for hello, frames in runs
    )
    policy = page_policy.content_security_policy(script, page_policy.hash_source(style))
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{html.escape(title)}</title>\n'
        f"<style>{style}</style>"
    )
    page = text_of("index.html")
    before, _, rest = page.partition("<!-- head -->")
    _, _, rest = rest.partition("<!-- /head -->")
    body, _, end = rest.partition("<!-- scripts -->")
    _, _, end = end.partition("<!-- /scripts -->")
    return f"{before}{head}{body}{data}\n<script>{script}</script>{end}"


def _packed(hello: Hello, frames: Iterable[Frame]) -> str:
    """Return the frames as compressed lines of JSON, which keeps the page of a long run small."""
    lines = b"\n".join([encode(hello), *map(encode, frames)])
    return base64.b64encode(gzip.compress(lines, 6, mtime=0)).decode()
