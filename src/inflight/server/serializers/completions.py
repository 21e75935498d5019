"""Answers of /v1/completions."""

from __future__ import annotations

from typing import Any

from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.outputs import OutputCollector
from inflight.server.call import Call
from inflight.server.logprobs import CompletionLogprobs, TokenNames, joined, prompt_logprobs
from inflight.server.serializers.openai import OpenAISerializer
from inflight.server.serializers.protocol import Change, Choice


class CompletionSerializer(OpenAISerializer):
    name = frame_name = "text_completion"

    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        output, shape = choice.output, _ChoiceShape(self._call, choice.collector, self._names)
        return {
            "index": choice.index,
            "text": shape.echoed + output.text,
            "logprobs": shape.logprobs(output.token_logprobs or ()),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            **shape.prompt_extras(),
            **({"token_ids": output.token_ids} if self._call.return_token_ids else {}),
        }

    def frame_choices(self, change: Change) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        first: list[dict[str, Any]] = []
        if change.begins:
            shape = self._shapes[change.index] = _ChoiceShape(self._call, change.collector, self._names)
            if (opening := shape.first(change.index)) is not None:
                first = [opening]
        call = self._call
        shown = change.text or change.finish or call.logprobs is not None or call.return_token_ids
        return first, [self._part(change)] if shown else []

    def __init__(self, call: Call, collectors: Any, names: TokenNames):
        super().__init__(call, collectors, names)
        self._shapes: dict[int, _ChoiceShape] = {}  # of the choices that have a frame

    def _part(self, change: Change) -> dict[str, Any]:
        finish = change.finish
        choice = {
            "index": change.index,
            "text": change.text,
            "logprobs": self._shapes[change.index].added_logprobs(change.logprobs),
            "finish_reason": None if finish is None else finish.reason,
        }
        if finish is not None:
            choice["stop_reason"] = finish.stopped_by
        if self._call.return_token_ids:
            choice["token_ids"] = change.token_ids
        return choice


class _ChoiceShape:
    """One choice, which belongs to one prompt: what it shows of that, and its log-probabilities piece by piece."""

    def __init__(self, call: Call, collector: OutputCollector, names: TokenNames):
        self._call, self._collector, self._names = call, collector, names
        self._logprobs = CompletionLogprobs(names, collector.request)

    @property
    def echoed(self) -> str:
        return (self._collector.prompt or "") if self._call.echo else ""

    def first(self, index: int) -> dict[str, Any] | None:
        """With echo the prompt is the beginning of the text."""
        extras = self.prompt_extras()
        if not (self._call.echo or extras):
            return None
        scored = self._scored()
        return {
            "index": index,
            "text": self.echoed,
            "logprobs": scored[0] if scored else None,
            "finish_reason": None,
            **extras,
        }

    def logprobs(self, entries: Any) -> dict[str, Any] | None:
        """Of everything that is shown."""
        if self._call.logprobs is None:
            return None
        return joined([*self._scored(), self._logprobs.output(entries)])

    def added_logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        return self._logprobs.output(entries) if self._call.logprobs is not None and entries else None

    def prompt_extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._call.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(self._collector.prompt_scores, self._names)
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = list(self._collector.request.prompt_token_ids)
        return extras

    def _scored(self) -> list[dict[str, Any]]:
        """The prompt's log-probabilities, where its text is shown with them."""
        if not self._call.echo or self._call.logprobs is None:
            return []
        most = self._call.logprobs
        scores = [TokenLogprob(one.token_id, one.logprob, one.top[:most]) for one in self._collector.prompt_scores]
        return [self._logprobs.prompt(self.echoed, scores)]
