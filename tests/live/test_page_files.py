"""The page as files: small, self-contained, and made of what it says."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re

import pytest

from inflight import uplot
from inflight.live.frames import Frame, Hello, decode
from inflight.live.page_files import BUNDLES, SCRIPTS, STYLES, page_file, served_page, text_of, whole_page

NAMES = ("index.html", *SCRIPTS, *STYLES)


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    assert sum(len(page_file(name).content) for name in NAMES) < 250_000
    for name in NAMES:
        if not name.startswith("uPlot"):
            assert not re.search(r"(?:src|href|url|fetch|import)\W{1,4}https?:", text_of(name)), name
            assert "innerHTML" not in text_of(name) and "insertAdjacentHTML" not in text_of(name), name


def test_every_script_is_named_in_order() -> None:
    named = re.findall(r'<script defer src="ui/([^"]+)">', text_of("index.html"))
    assert tuple(named) == SCRIPTS
    assert tuple(re.findall(r'<link rel="stylesheet" href="ui/([^"]+)">', text_of("index.html"))) == STYLES


def test_a_served_page_has_its_styles_in_it_and_its_scripts_in_one_file() -> None:
    for bundle, name in BUNDLES.items():
        page = served_page(name, '<meta name="more" content="1">' if name == "index.html" else "")
        text = page.content.decode()
        assert re.findall(r'(?:src|href)="(ui/[^"]+)"', text) == [f"ui/{bundle}"]
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
        assert style is not None and text_of("live.css") in style[1], "it is whole"
        digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        assert page.style == f"'sha256-{digest}'", "the policy allows this one and no other"
        assert gzip.decompress(page.gzipped) == page.content
        named = re.findall(r'<script defer src="ui/([^"]+)">', text_of(name))
        whole = page_file(bundle).content.decode()
        places = [whole.index(text_of(one)) for one in named]
        assert places == sorted(places) and len(places) > 5, "scripts begin in order"
    assert '<meta name="more"' in served_page("index.html", '<meta name="more" content="1">').content.decode()


def test_what_is_no_file_of_the_page_is_not_read() -> None:
    for name in ("../frames.py", "nothing.js", ""):
        with pytest.raises(KeyError):
            page_file(name)


def test_uplot_comes_with_its_licence() -> None:
    assert "MIT" in text_of(uplot.LICENCE) and f"(v{uplot.VERSION})" in text_of(uplot.SCRIPT)[:200]
    assert "Permission is hereby granted" in whole_page("a copy", [(Hello("record", "a"), [])])


def test_one_file_holds_its_runs_and_no_markup_of_theirs() -> None:
    bad = "</script><img src=x onerror=alert(1)>"
    page = whole_page(bad, [(Hello("record", bad), [Frame(0, 0.0, 1.0)]), (Hello("record", "b"), [])])
    assert "<img" not in page and 'src="ui/' not in page and 'href="ui/' not in page
    held = re.findall(r'<script type="application/x-inflight-frames">([^<]*)</script>', page)
    lines = gzip.decompress(base64.b64decode(held[0])).splitlines()
    assert [decode(line) for line in lines] == [Hello("record", bad), Frame(0, 0.0, 1.0)]
    assert len(held) == 2 and "default-src 'none'" in page
