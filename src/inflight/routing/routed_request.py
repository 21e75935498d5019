"""A request as a router sees it, before any engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.core.types.kv_blocks import event_block_hash, event_root_hash
from inflight.core.types.request import Request


@dataclass(slots=True)
class RoutedRequest:
    """A request for a router.

    Attributes:
        prompt: token ids; or bytes of text, as long as all requests have them.
        salt, adapter: prefixes are shared under the same ones only.
        session: of one tenant's program, or conversation; "": it is one by itself.
        num_external_tokens: leading tokens of the prompt that need not be computed, wherever it goes.
        expected_tokens: of the answer.
        reuse: share of computed tokens that later requests will find cached.
        before: a request that this one's prompt probably begins with, whose blocks need not be hashed again.
    """

    request_id: str
    prompt: Sequence[int]
    salt: str = ""
    adapter: str | None = None
    session: str = ""
    tenant: str = ""
    num_external_tokens: int = 0
    expected_tokens: float = 0.0
    reuse: float = 0.0
    before: RoutedRequest | None = None
    _hashes: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, before: RoutedRequest | None = None) -> RoutedRequest:
        program, tenant = request.of_program, request.tenant
        if before is not None:
            before.before = None  # a chain would keep all prompts of a conversation alive
        return cls(
            request.request_id,
            request.prompt_token_ids,
            request.cache_salt,
            None if request.adapter is None else request.adapter.name,
            f"{len(tenant)}:{tenant}:{program}" if program else "",
            tenant,
            request.num_external_tokens,
            before=before,
        )

    def block_hashes(self, block_size: int) -> tuple[bytes, ...]:
        """Return the hashes of the prompt's whole blocks, as in KV events of an engine with blocks of this size."""
        if (known := self._hashes.get(block_size)) is None:
            hashes = list(self._shared_hashes(block_size))
            last = hashes[-1] if hashes else event_root_hash(self.salt, self.adapter)
            for start in range(len(hashes) * block_size, len(self.prompt) - block_size + 1, block_size):
                last = event_block_hash(last, self.prompt[start : start + block_size])
                hashes.append(last)
            known = self._hashes[block_size] = tuple(hashes)
        return known

    def _shared_hashes(self, block_size: int) -> tuple[bytes, ...]:
        """Return the hashes of the request before, where this prompt begins with all of its blocks."""
        before = self.before
        if before is None or (before.salt, before.adapter) != (self.salt, self.adapter):
            return ()
        hashes = before._hashes.get(block_size, ())
        length = len(hashes) * block_size
        return hashes if self.prompt[:length] == before.prompt[:length] else ()
