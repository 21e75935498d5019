"""A request as a router sees it, before any engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.core.types.request import Request
from inflight.routing.block_hashes import block_hashes


@dataclass(slots=True)
class RoutedRequest:
    """prompt: token ids; bytes of text do as well, where nobody has tokenized it, as long as all requests are alike.
    salt: prefixes are shared under the same one only (cache salt, adapter). session: of one conversation, or "".
    tenant: whose share it is. handed_tokens: leading ones of the prompt that need not be computed, wherever it goes.
    expected_tokens: of the answer. reuse: share of what is computed that others will find again, as things go."""

    request_id: str
    prompt: Sequence[int]
    salt: str = ""
    session: str = ""
    tenant: str = ""
    handed_tokens: int = 0
    expected_tokens: float = 0.0
    reuse: float = 0.0
    _hashes: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, session: str = "") -> RoutedRequest:
        adapter = "" if request.adapter is None else request.adapter.name
        salt = f"{adapter}\0{request.cache_salt}" if adapter or request.cache_salt else ""
        handed = request.handed_tokens
        return cls(request.request_id, request.prompt_token_ids, salt, session, request.tenant, handed)

    def block_hashes(self, block_size: int) -> tuple[bytes, ...]:
        """Of the prompt's whole blocks, each with all that is before it."""
        if (known := self._hashes.get(block_size)) is None:
            known = self._hashes[block_size] = block_hashes(self.prompt, block_size, self.salt)
        return known
