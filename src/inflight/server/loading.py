"""What the server needs of an engine that was loaded, here or in another process, and what is put together of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from inflight.core.types.adapter import Adapter
from inflight.core.types.sampling import SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.client import EngineClient
from inflight.engine.event_stream import EngineStopped
from inflight.frontend.adapter_names import AdapterNames
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.prompts import PromptEncoder
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.batch.service import BatchService
from inflight.server.line_calls import LineAnswerer
from inflight.server.metrics import Metrics
from inflight.server.offload import offload
from inflight.server.parsers import parsers_of, shown_token_ids
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.preprocessor import Preprocessor
from inflight.server.preprocessing.wire import LONG_MEMORY_BYTES, Limits
from inflight.server.served import Served
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.translating import RequestTranslator
from inflight.text import Tokenizer

# What reading a prompt as long as the context may take, in a process of its own: the tokenizer keeps that of a token.
READING_BYTES, READING_BYTES_OF_TOKEN = 24 << 20, 400


class Described(Struct, frozen=True):
    """An engine, to those who ask it. models: names by which it may be called. most_sequences: that may wait at once.
    defaults: sampling settings of bodies that name none. seed: of requests that name none. clock_zero: where its clock
    began, on the machine's monotonic clock, which is the same in all processes. parsers: of its answers, each of them
    settled. keeps_grammars: it binds answers to schemas and grammars. generates: it continues texts. pooler: how it
    tells something of whole ones, if it does; text_prompts: that may stand before these. adapters: of its start."""

    models: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    most_sequences: int | None
    defaults: SamplingParams
    seed: int
    clock_zero: float
    parsers: ParserNames
    keeps_grammars: bool
    generates: bool = True
    pooler: Pooler | None = None
    text_prompts: TextPrompts = NO_PROMPTS
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """One of this process, and what counts what it does."""

    bridge: AsyncBridge
    metrics: Metrics
    described: Described

    async def page(self) -> tuple[bytes, str]:
        """The metrics: text and content type."""
        try:
            snapshot = await self.bridge.snapshot()
        except EngineStopped:
            snapshot = None
        return await offload(partial(self.metrics.render, snapshot))


def make_served(
    settings: ServerSettings,
    engine: Described,
    client: EngineClient,
    preprocessing: PreprocessingPool,
    prompts: PromptEncoder,
    tokenizer: Tokenizer | None,
    adapters: AdapterNames | None = None,
) -> Served:
    """Waits until the preprocessing has loaded; raises PreprocessingError. adapters: the engine's own, which may
    change; None: those of its start."""
    adapters = AdapterNames(None, engine.adapters) if adapters is None else adapters
    changes = settings.lora_dir is not None  # then names are checked where calls are made alone
    limits = Limits(
        models=() if changes else (*engine.models, *adapters.names),
        max_n=settings.max_n,
        max_prompts=settings.max_prompts,
        most_sequences=engine.most_sequences,
        max_model_len=engine.max_model_len,
        vocab_size=engine.vocab_size,
        parse_control_tokens=settings.parse_control_tokens,
        parsers=engine.parsers,
        keeps_grammars=engine.keeps_grammars,
        generates=engine.generates,
        pooler=engine.pooler,
        prompts=engine.text_prompts,
        memory_bytes=max(LONG_MEMORY_BYTES, READING_BYTES + READING_BYTES_OF_TOKEN * engine.max_model_len),
    )

    def now() -> float:
        return time.monotonic() - engine.clock_zero

    parsers = parsers_of(prompts, tokenizer, engine.parsers)
    preprocessing.configure(limits, Preprocessor(prompts, tokenizer, limits, parsers))
    return Served(
        bridge=client,
        preprocessing=preprocessing,
        translator=RequestTranslator(
            encoder=prompts,
            models=engine.models,
            now=now,
            defaults=engine.defaults,
            isolate=settings.isolate_tenants,
            parsers=parsers,
            shown_token_ids=shown_token_ids(parsers, tokenizer),
            pooler=engine.pooler,
            adapters=adapters,
        ),
        tokenizer=tokenizer,
        max_model_len=engine.max_model_len,
        keeps_grammars=engine.keeps_grammars,
        generates=engine.generates,
    )


def make_jobs(service: Service, tenants: Tenants) -> BatchService | None:
    """Batch jobs and stored responses, where there is a place to keep them. Takes the data directory; raises
    DataDirectoryError."""
    settings = service.settings
    if settings.data_dir is None:
        return None
    return BatchService(
        settings.data_dir,
        LineAnswerer(service),
        tenants.named,
        concurrency=settings.batch_concurrency or 64,
        max_file_mb=settings.max_file_mb or 512,
        max_stored_mb=settings.max_stored_mb or 10_240,
        max_stored_files=settings.max_stored_files or 10_000,
        max_responses_mb=settings.max_responses_mb or 1024,
        response_days=settings.response_days or 30,
    )
