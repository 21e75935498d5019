"""The body that creates a batch job."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from inflight.server.batch.jobs import WINDOW
from inflight.server.batch.lines import LinePath
from inflight.server.bodies.decoding import BodyDecoder

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


# Its form is told in words by whoever reads it, and by the document.
_WINDOW = Meta(max_length=30, description="Such as 24h.", extra_json_schema={"pattern": f"^{WINDOW.pattern}$"})


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """completion_window: minutes, hours or days, such as 24h."""

    input_file_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", max_length=64)]
    endpoint: LinePath
    completion_window: Annotated[str, _WINDOW]
    metadata: Metadata | None = None


BATCH = BodyDecoder(BatchBody, neutral={"output_expires_after": ((), "files are kept until they are deleted.")})
