"""The ids of files, which are the names of their contents too: drawn at random, or of the job that writes the file."""

from __future__ import annotations

import hashlib
import re
import secrets

FILE_ID = re.compile(r"file-[0-9a-f]{32}")


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def output_file_id(job_id: str, kind: str) -> str:
    """The same however often the job ends. kind: which of its files."""
    return f"file-{hashlib.sha256(f'{job_id}/{kind}'.encode()).hexdigest()[:32]}"
