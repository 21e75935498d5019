"""Runner of inflight: the engine's own loop, without text and HTTP."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.peers.stepping import QUANTIZATION, Job, serve
from inflight import __version__
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams


class Inflight:
    version = __version__

    def __init__(self, job: Job):
        settings = EngineSettings(
            model=job.model,
            threads=job.threads,
            max_num_seqs=job.max_num_seqs,
            max_model_len=job.max_model_len,
            kv_memory=job.kv_gib,
            enable_prefix_caching=False,
            quantization=QUANTIZATION.get(job.precision, "none"),
            **job.settings,
        )
        engine = build_engine(settings, SchedulingSettings(speculation="off"))  # as the others compute: a token a step
        self._loop = engine.loop
        self.settings = f"{engine.settings['max_num_batched_tokens'].value} tokens in a step"

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        now = self._loop.clock.now()
        self._loop.add(
            Request(request_id=str(number), prompt_token_ids=tuple(prompt), params=params, seed=0, arrival=now)
        )

    def step(self) -> Iterable[tuple[int, int]]:
        events = self._loop.advance()
        if isinstance(events, WaitUntil):
            self._loop.clock.wait_until(events.time)
            return []
        return [(int(one.request_id), len(one.token_ids)) for one in events if isinstance(one, TokensEvent)]


if __name__ == "__main__":
    serve(Inflight)
