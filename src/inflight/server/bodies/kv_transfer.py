"""`kv_transfer_params`: what routers between prefill and decode servers tell, and what a prefill server answers.

Knows vLLM's names. What they mean here, `server.kv_peers` knows; servers that exchange nothing pass them over.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from inflight.server.bodies.types import MAX_TOKEN_IDS

Short = Annotated[str, Meta(max_length=256)]
Blocks = Annotated[list[Any], Meta(max_length=MAX_TOKEN_IDS)]  # numbers, or lists of them, as the other engine has it


class KVTransferParams(Struct, omit_defaults=False, kw_only=True):
    """do_remote_decode: somebody else goes on with the prompt; do_remote_prefill: somebody else has computed it, whom
    the others name. remote_block_ids: of the prompt's blocks there; they are asked for by their content here. Fields
    that are not here are passed over."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: Short | None = None
    remote_block_ids: Blocks | None = None
    remote_host: Short | None = None
    remote_port: Annotated[int, Meta(ge=0, lt=65536)] | None = None
    remote_request_id: Short | None = None
    tp_size: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
