"""Make the parts of a server that serve a loaded engine: prompts, the served model, the live page, jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from inflight.engine.protocols import EngineClient
from inflight.frontend.adapter_names import AdapterNames
from inflight.frontend.prompts import PromptEncoder
from inflight.peer_secret import read_peer_secret
from inflight.server.common.prepared import MAX_BODY_MEMORY_BYTES, Limits
from inflight.server.engine_description import EngineDescription
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.service import JobService
from inflight.server.kv_peers import KVPeers
from inflight.server.line_calls import ServiceLineHandler
from inflight.server.live.broadcaster import FeedBroadcaster
from inflight.server.live.routes import Live
from inflight.server.live.sources import FeedSource
from inflight.server.parsers import call_marks, parsers_of, shown_token_ids
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.worker import Preprocessor
from inflight.server.served import ServedEngine
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.server.translating import RequestTranslator
from inflight.text import ChatTemplate, Tokenizer

SERIAL_SHIFT = 40  # bits of a process's own numbers for requests without a seed, below its serial number
# What reading a prompt as long as the context may take, in a process of its own: the tokenizer keeps that of a token.
READING_BYTES, READING_BYTES_OF_TOKEN = 24 << 20, 400


def make_prompts(
    tokenizer: Tokenizer | None, template: ChatTemplate | None, engine: EngineDescription, serial: int
) -> PromptEncoder:
    """Make the encoder of prompts for an engine in another process.

    Args:
        serial: Of the process or the load; no other one has the same, so that requests without a seed get another
            seed from each.
    """
    first, of_pairs = serial << SERIAL_SHIFT, engine.text_prompts.of_pairs
    return PromptEncoder(tokenizer, template, engine.seed, first=first, pair_template=of_pairs)


def make_served(
    settings: ServerSettings,
    engine: EngineDescription,
    client: EngineClient,
    preprocessing: PreprocessingPool,
    prompts: PromptEncoder,
    tokenizer: Tokenizer | None,
    path: str = "",
) -> ServedEngine:
    """Return the served model once its preprocessing has loaded.

    Raises:
        PreprocessingError: The preprocessing could not be started.
        PeerSecretError: The peers' secret is unreadable.
    """
    adapters = AdapterNames(None, engine.adapters)
    limits = _limits(settings, engine, adapters)

    def now() -> float:
        return time.monotonic() - engine.clock_zero

    parsers = parsers_of(prompts, tokenizer, engine.parsers)
    preprocessing.configure(limits, Preprocessor(prompts, tokenizer, limits, parsers))
    return ServedEngine(
        bridge=client,
        preprocessing=preprocessing,
        translator=RequestTranslator(
            encoder=prompts,
            models=engine.models,
            now=now,
            defaults=engine.defaults,
            isolate=bool(settings.isolate_tenants),
            parsers=parsers,
            shown_token_ids=shown_token_ids(parsers, tokenizer),
            call_marks=call_marks(parsers, tokenizer),
            pooler=engine.pooler,
            adapters=adapters,
            lanes=engine.lanes,
            peers=None
            if engine.peering is None
            else KVPeers(engine.peering, read_peer_secret(settings.kv_peer_secret_file)),
        ),
        tokenizer=tokenizer,
        max_model_len=engine.max_model_len,
        keeps_grammars=engine.keeps_grammars,
        generates=engine.generates,
        device=engine.device,
        path=path,
    )


def _limits(settings: ServerSettings, engine: EngineDescription, adapters: AdapterNames) -> Limits:
    """Return the limits by which bodies for the engine are read."""
    changes = settings.lora_dir is not None  # then names are checked where calls are made alone
    return Limits(
        models=() if changes else (*engine.models, *adapters.names),
        max_n=settings.max_n,
        max_prompts=settings.max_prompts,
        max_sequences=engine.max_sequences,
        max_model_len=engine.max_model_len,
        vocab_size=engine.vocab_size,
        parse_control_tokens=settings.parse_control_tokens,
        parsers=engine.parsers,
        keeps_grammars=engine.keeps_grammars,
        generates=engine.generates,
        pooler=engine.pooler,
        prompts=engine.text_prompts,
        unknown_fields=settings.unknown_fields,
        memory_bytes=max(MAX_BODY_MEMORY_BYTES, READING_BYTES + READING_BYTES_OF_TOKEN * engine.max_model_len),
    )


def make_live(service: Service, source: Callable[[], FeedSource | None], record: Path | None = None) -> Live | None:
    """Return the feed of the live page, unless it is off. source: returns None while nothing is loaded."""
    if not service.settings.ui:
        return None

    def ends() -> bool:
        return service.state == "failed" or (service.state == "draining" and not service.in_flight)

    return Live(FeedBroadcaster(source, ends), record)


def make_jobs(service: Service, tenants: Tenants, *, is_claimed: bool = False) -> JobService | None:
    """Make batch jobs and stored responses, where there is a data directory.

    Args:
        is_claimed: The process that started this one claims and prepares the directory.

    Raises:
        DataDirectoryError: It cannot be claimed.
    """
    settings = service.settings
    if settings.data_dir is None:
        return None
    data = DataDirectory(settings.data_dir)
    return JobService(
        data if is_claimed else data.claim(),
        ServiceLineHandler(service),
        tenants.named,
        concurrency=settings.batch_concurrency or 64,
        max_file_mb=settings.max_file_mb or 512,
        max_stored_mb=settings.max_stored_mb or 10_240,
        max_stored_files=settings.max_stored_files or 10_000,
        max_responses_mb=settings.max_responses_mb or 1024,
        response_days=settings.response_days or 30,
    )
