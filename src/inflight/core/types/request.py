"""A request: what a client asked, frozen when it is made.

Knows the prompt as token ids and the settings. Progress is `Sequence`'s, text is the text package's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.core.types.kv_transfer import KVTransfer
from inflight.core.types.sampling import Adapter, Grammar, PoolingParams, SamplingParams
from inflight.counted import counted


@dataclass(frozen=True, slots=True)
class SLO:
    """What a request was promised: seconds to the first token, and between tokens. None: nothing promised."""

    ttft: float | None = None
    itl: float | None = None


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """Texts that open and close an output's reasoning, any of each. is_open: the prompt has opened it."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    request_id: unique among the requests that are alive.
    prompt_token_ids: at least one token.
    pooling: the numbers that the model tells of the prompt are wanted, and nothing else: `params` are NO_SAMPLING.
    second_text_at: of a pooled pair of texts the position at which the second begins.
    seed: resolved (params.seed, or one drawn from the engine's own seed), so that a replay draws the same.
    arrival: intended send time in seconds on the engine's clock; latencies count from it.
    tenant: whose share it is (policy fair). priority: the lower number is served first (policy priority).
    slo: targets (policy deadline, admission).
    bad_token_ids: what bad_words are as tokens: the last of each is not drawn behind the others.
    cache_salt: requests share cached prefixes, and drafts from answers, only with requests of the same salt.
    num_external_tokens: leading prompt tokens whose keys and values came with the request, as records of earlier
    versions
        have it of simulated engines; engines use `kv_transfer`. They take whole blocks, and are not computed here.
    session: of one conversation, for routers between engines and for what of the cache is evicted; "": none.
    kv_transfer: what of the prompt's keys and values other engines have, or are to have; None: nothing.
    adapter: what the model is changed by for this request; None: nothing. Prefixes are shared under the same one only.
    grammar: what the output's text must be like.
    shown_token_ids: special tokens that are text of this output all the same (marks of tool calls and reasoning).
    reasoning: behind which stop strings are looked for; None: from the output's first token on.
    call_marks: runs of tokens of which an output that calls a tool has one, where tools are offered. Whoever called one
        comes back in a tool's time, else in a person's, if at all: what of the cache is evicted depends on it.
    forced_output_tokens: exact output length taken from a trace or a benchmark. Only the stop checker may look at it:
        policies, predictors and memory reservation see `params.max_tokens`, as they would in life.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    arrival: float = 0.0
    lane: str = "interactive"
    tenant: str = ""
    priority: int = 0
    slo: SLO = SLO()
    session: str = ""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    cache_salt: str = ""
    num_external_tokens: int = 0
    forced_output_tokens: int | None = None
    grammar: Grammar | None = None
    shown_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningText | None = None
    call_marks: tuple[tuple[int, ...], ...] = ()
    pooling: PoolingParams | None = None
    second_text_at: int | None = None
    adapter: Adapter | None = None
    kv_transfer: KVTransfer | None = None


def waiting_requests(count: int) -> str:
    """For sentences: 1 request waits, 2 requests wait."""
    return counted(count, "request waits", "requests wait")


class RequestRefused(ValueError):
    """The engine will not take this request; the sentence holds the number that refused it.

    retry_after: seconds after which it makes sense to try again; None when it never will.
    field: the setting that is to blame, if it is one ("prompt" for the prompt itself). code: a short name for machines.
    """

    def __init__(
        self, sentence: str, retry_after: float | None = None, *, field: str | None = None, code: str | None = None
    ):
        super().__init__(sentence)
        self.retry_after = retry_after
        self.field = field
        self.code = code
