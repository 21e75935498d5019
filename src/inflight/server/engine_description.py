"""The description of an engine, by which API processes know one in another process."""

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
    """An engine, as API processes need it.

    Attributes:
        models: Names by which it may be called.
        max_sequences: That may wait at once.
        defaults: Sampling settings of bodies that name none. seed: Of requests that name none.
        clock_zero: Begin of its clock, on the machine's monotonic clock, which is the same in all processes.
        parsers: Of its answers, each of them chosen.
        keeps_grammars: It applies schemas and grammars.
        generates: It continues texts.
        pooler: How it makes vectors or scores of texts, if it does. text_prompts: That may be put before these.
        adapters: Of its start.
        peering: The engine among its peers, if it has any.
        device: That it computes on.
    """

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
    device: str = "cpu"


encode_description = msgspec.msgpack.Encoder().encode
decode_description = msgspec.msgpack.Decoder(EngineDescription).decode
