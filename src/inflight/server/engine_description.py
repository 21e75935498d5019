"""The description of an engine, which API processes have of one in another process."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import Adapter, SamplingParams
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.kv_peers import KVPeering


class ServedLane(Struct, frozen=True):
    """background: it has what others leave. takes_priority: requests may name one there."""

    name: str
    background: bool = False
    takes_priority: bool = False


class EngineDescription(Struct, frozen=True):
    """An engine, to those who ask it. models: names by which it may be called. max_sequences: that may wait at once.
    defaults: sampling settings of bodies that name none. seed: of requests that name none. clock_zero: where its clock
    began, on the machine's monotonic clock, which is the same in all processes. parsers: of its answers, each of them
    settled. keeps_grammars: it binds answers to schemas and grammars. generates: it continues texts. pooler: how it
    tells something of whole ones, if it does; text_prompts: that may stand before these. adapters: of its start.
    lanes: all of them. peering: the engine among its peers, if it has any."""

    models: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    max_sequences: int | None
    defaults: SamplingParams
    seed: int
    clock_zero: float
    parsers: ParserNames
    keeps_grammars: bool
    generates: bool = True
    pooler: Pooler | None = None
    text_prompts: TextPrompts = NO_PROMPTS
    adapters: tuple[Adapter, ...] = ()
    lanes: tuple[ServedLane, ...] = ()
    peering: KVPeering | None = None


encode_description = msgspec.msgpack.Encoder().encode
decode_description = msgspec.msgpack.Decoder(EngineDescription).decode
