"""inflight: an LLM inference server whose subject is batching.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from inflight.release import VERSION

TYPE_CHECKING = False  # as in typing, which takes as long to import as all else here; type checkers take it to be true
if TYPE_CHECKING:
    from inflight.api import (
        LLM,
        AsyncEngine,
        ClassificationOutput,
        CompletionOutput,
        EmbeddingOutput,
        Logprob,
        PoolingRequestOutput,
        RequestOutput,
        SamplingParams,
        ScoringOutput,
        StructuredOutputsParams,
    )

__version__ = VERSION
__all__ = [
    "LLM",
    "AsyncEngine",
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "Logprob",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'inflight' has no attribute {name!r}; it has {', '.join(__all__)}")
    from inflight import api

    return getattr(api, name)
