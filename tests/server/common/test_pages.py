"""The pages name every field of which bodies know something: what is honoured, refused, and passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inflight.server.common.prepared import EndpointName
from inflight.server.registry import ENDPOINTS

DOCS = Path(__file__).parents[3] / "docs"
COMMON = "serving-reference"  # what all endpoints share is there
PAGES: list[tuple[EndpointName, str]] = [
    ("chat", COMMON),
    ("completion", COMMON),
    ("responses", "responses-api"),
    ("messages", "messages-api"),
    ("count_tokens", "messages-api"),
]


@pytest.mark.parametrize(("endpoint", "page"), PAGES)
def test_the_page_names_every_field(endpoint: EndpointName, page: str) -> None:
    body = ENDPOINTS[endpoint].body
    assert not {*body.kind.__struct_encode_fields__} - named_on(page)
    assert not body.names - named_on(page) - named_on(COMMON)


def named_on(page: str) -> set[str]:
    """Words between backticks."""
    quoted = re.findall(r"`([^`\n]+)`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    return {word for one in quoted for word in re.findall(r"\w+", one)}
