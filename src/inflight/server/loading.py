"""What the server needs of an engine that was loaded, here or in another process, and what is put together of it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from inflight.core.types.sampling import SamplingParams
from inflight.engine.client import EngineClient
from inflight.frontend.prompts import PromptEncoder
from inflight.server.preprocessing.pool import PreprocessingPool
from inflight.server.preprocessing.preprocessor import Preprocessor
from inflight.server.preprocessing.wire import LONG_MEMORY_BYTES, Limits
from inflight.server.service import Served
from inflight.server.settings import ServerSettings
from inflight.server.translating import RequestTranslator
from inflight.text import Tokenizer

# What reading a prompt as long as the context may take, in a process of its own: the tokenizer keeps that of a token.
READING_BYTES, READING_BYTES_OF_TOKEN = 24 << 20, 400


class Described(Struct, frozen=True):
    """An engine, to those who ask it. models: names by which it may be called. most_sequences: that may wait at once.
    defaults: sampling settings of bodies that name none. seed: of requests that name none."""

    models: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    most_sequences: int | None
    defaults: SamplingParams
    seed: int


def make_served(
    settings: ServerSettings,
    engine: Described,
    client: EngineClient,
    preprocessing: PreprocessingPool,
    prompts: PromptEncoder,
    tokenizer: Tokenizer | None,
    now: Callable[[], float],
) -> Served:
    """now: the engine's clock. Waits until the preprocessing has loaded; raises PreprocessingError."""
    limits = Limits(
        models=engine.models,
        max_n=settings.max_n,
        max_prompts=settings.max_prompts,
        most_sequences=engine.most_sequences,
        max_model_len=engine.max_model_len,
        vocab_size=engine.vocab_size,
        parse_control_tokens=settings.parse_control_tokens,
        memory_bytes=max(LONG_MEMORY_BYTES, READING_BYTES + READING_BYTES_OF_TOKEN * engine.max_model_len),
    )
    preprocessing.configure(limits, Preprocessor(prompts, tokenizer, limits))
    return Served(
        bridge=client,
        preprocessing=preprocessing,
        translator=RequestTranslator(
            encoder=prompts, models=engine.models, now=now, defaults=engine.defaults, isolate=settings.isolate_tenants
        ),
        tokenizer=tokenizer,
        max_model_len=engine.max_model_len,
    )
