"""A request, as the client asked: token ids of the prompt and settings, frozen when it is made."""

from __future__ import annotations

from msgspec import Struct

from inflight.core.types.kv_transfer import KVTransfer
from inflight.core.types.sampling import Adapter, Grammar, PoolingParams, SamplingParams
from inflight.counted import Count, Time, counted


class SLO(Struct, frozen=True):
    """Latency targets in seconds; None: no target.

    Attributes:
        ttft: To the first token.
        itl: Between tokens, of each gap.
        tpot: Of each token behind the first, on average over the answer.
    """

    ttft: Time | None = None
    itl: Time | None = None
    tpot: Time | None = None

    @property
    def pace(self) -> float | None:
        """Return the seconds that each token behind the first may take on average, by both targets."""
        return min((one for one in (self.itl, self.tpot) if one is not None), default=None)


class ReasoningText(Struct, frozen=True):
    """Texts around an output's reasoning.

    Attributes:
        begins: Any of them opens it.
        ends: Any of them closes it.
        is_open: Whether the prompt has opened it.
    """

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request.

    Attributes:
        request_id: Unique among the requests that are alive.
        prompt_token_ids: At least one token.
        params: Sampling settings; NO_SAMPLING for a request with `pooling`.
        seed: Resolved (params.seed, or one drawn from the engine's own seed), so that a replay draws the same.
        arrival: Intended send time in seconds on the engine's clock; latencies count from it.
        lane: Scheduling class.
        tenant: Whose share it uses (policy fair).
        priority: The lower number is served first (policy priority).
        slo: Targets (policy deadline, admission).
        session: Conversation, for routers between engines and for eviction from the prefix cache; "": none.
        program: Run of an agent that the request is a call of, perhaps one of several sessions (`of_program`).
        bad_token_ids: Tokens of bad_words: the last of each is not drawn behind the others.
        cache_salt: Requests share cached prefixes, and drafts from answers, only with requests of the same salt.
        num_external_tokens: Leading prompt tokens whose keys and values came with the request, in records of earlier
            versions of simulated engines; engines use `kv_transfer`. They take whole blocks and are not computed.
        forced_output_tokens: Exact output length taken from a trace or a benchmark. Only the stop checker may read it:
            policies, predictors and memory reservation see `params.max_tokens`, as in production.
        grammar: Grammar of the output's text; None: any text.
        shown_token_ids: Special tokens that are text of this output (marks of tool calls and reasoning).
        reasoning: Text behind which stop strings are looked for; None: from the output's first token on.
        call_marks: Runs of tokens of which an output that calls a tool has one, where tools are offered. A client that
            called a tool comes back in a tool's time, else in a person's, if at all: eviction depends on it.
        pooling: Settings of the vector that is wanted instead of an output; None: an output.
        second_text_at: Position where the second of a pooled pair of texts begins.
        adapter: Adapter that changes the model for this request; None: none. Prefixes are shared under one adapter.
        kv_transfer: Keys and values of the prompt that other engines have or want; None: none.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    seed: int = 0
    arrival: Time = 0.0
    lane: str = "interactive"
    tenant: str = ""
    priority: int = 0
    slo: SLO = SLO()
    session: str = ""
    program: str = ""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    cache_salt: str = ""
    num_external_tokens: Count = 0
    forced_output_tokens: int | None = None
    grammar: Grammar | None = None
    shown_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningText | None = None
    call_marks: tuple[tuple[int, ...], ...] = ()
    pooling: PoolingParams | None = None
    second_text_at: int | None = None
    adapter: Adapter | None = None
    kv_transfer: KVTransfer | None = None

    @property
    def of_program(self) -> str:
        """Name of its program within its tenant: its session's, where it names none; "": it is a program by itself."""
        return self.program or self.session


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
