"""Limit a page that is one file to its own script and styles, without any request, by a Content Security Policy (level
3)."""

from __future__ import annotations

import base64
import hashlib


def hash_source(text: str) -> str:
    """A source of scripts or styles: this text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_security_policy(script: str, styles: str) -> str:
    """The policy of a page with this script. styles: a source of styles."""
    return (
        f"default-src 'none'; script-src {hash_source(script)}; style-src {styles}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
