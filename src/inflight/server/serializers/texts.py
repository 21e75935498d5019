"""Answers about whole texts: vectors, scores and classes, in the forms of `bodies.texts`.

Knows a call and what the engine told of each of its requests. Nothing of it is streamed: each text's numbers come at
once.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from inflight.frontend.outputs import OutputCollector
from inflight.server.call import Call
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames, encode
from inflight.server.serializers.openai import DONE, frame
from inflight.server.serializers.protocol import Change, Choice, Usage


class TextSerializer:
    """An `AnswerSerializer` but for `told`."""

    alive = b""

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors = call, collectors

    def told(self, usage: dict[str, Any]) -> Any:
        """The answer."""
        raise NotImplementedError

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return encode(self.told({"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}))

    def frames(self, changes: Sequence[Change], before: Usage, after: Usage, ended: bool) -> bytes:
        return b""

    def end(self, usage: Usage) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body) + DONE

    def _envelope(self, data: list[Any], usage: dict[str, Any]) -> dict[str, Any]:
        call = self._call
        return {
            "id": call.call_id,
            "object": "list",
            "created": call.created,
            "model": call.model,
            "data": data,
            "usage": usage,
            **self._timings(),
        }

    def _timings(self) -> dict[str, Any]:
        if not self._call.timings:
            return {}
        timings = [one.timings.to_json() for one in self._collectors if one.timings is not None]
        return {"timings": timings[0] if len(self._collectors) == 1 else timings}

    @property
    def _vectors(self) -> list[tuple[float, ...]]:
        return [one.embedding or () for one in self._collectors]

    def _scores(self) -> list[float]:
        """Of pairs: what the model tells of each, or where it tells vectors the cosines of these."""
        vectors, pairs = self._vectors, self._call.pairs
        if not pairs:
            return [vector[0] for vector in vectors]
        return [math.fsum(a * b for a, b in zip(vectors[i], vectors[j], strict=True)) for i, j in pairs]

    def _ranked(self) -> list[tuple[int, float]]:
        """Places of documents and their scores, the best first; ties in their order."""
        scores = list(enumerate(self._scores()))
        return sorted(scores, key=lambda one: -one[1])[: self._call.text_form.top_n]


class EmbeddingsSerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        data = [
            {"object": "embedding", "index": index, "embedding": self._shown(vector)}
            for index, vector in enumerate(self._vectors)
        ]
        return self._envelope(data, usage)

    def _shown(self, vector: tuple[float, ...]) -> Any:
        if self._call.text_form.base64:
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        return msgspec.Raw(encode(vector))


class EmbedSerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        return self._vectors


class ScoreSerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(self._scores())]
        return self._envelope(data, usage)


class RerankSerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        shown = self._call.text_form.documents
        results = [
            {
                "index": index,
                **({"document": {"text": shown[index]}} if shown else {}),
                "relevance_score": score,
            }
            for index, score in self._ranked()
        ]
        call = self._call
        return {"id": call.call_id, "model": call.model, "usage": usage, "results": results, **self._timings()}


class TextRerankSerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        shown = self._call.text_form.documents
        return [
            {"index": index, "score": score, **({"text": shown[index]} if shown else {})}
            for index, score in self._ranked()
        ]


class ClassifySerializer(TextSerializer):
    def told(self, usage: dict[str, Any]) -> Any:
        labels, data = self._call.labels, []
        for index, chances in enumerate(self._vectors):
            best = max(range(len(chances)), key=chances.__getitem__, default=0)
            data.append({"index": index, "label": labels[best], "probs": chances, "num_classes": len(chances)})
        return self._envelope(data, usage)
