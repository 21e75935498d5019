"""Lines in OpenAI's batch form, offline: a body becomes a prompt with settings, an output becomes a body.

Knows the two endpoints' bodies; the line around them, `server.batch.lines` knows.
"""

from __future__ import annotations

import time
from typing import Any

from inflight.core.sampling import SamplingParams
from inflight.frontend.lines import InputLine, LineError, parse_object
from inflight.frontend.outputs import CompletionOutput, RequestOutput
from inflight.frontend.prompts import PromptEncoder
from inflight.server.batch.lines import CHAT_COMPLETIONS, BatchLine


def openai_line(line: BatchLine, defaults: SamplingParams, prompts: PromptEncoder) -> InputLine:
    """Raises ValueErrors with a sentence, as `parse_line` does."""
    body = {name: value for name, value in line.body.items() if name not in ("model", "stream")}
    if body.get("logprobs"):
        raise LineError("logprobs cannot be asked for in a batch line; use a line with a prompt of its own.")
    if line.url == CHAT_COMPLETIONS:
        if body.get("max_completion_tokens") is not None:
            body["max_tokens"] = body["max_completion_tokens"]
        body.pop("max_completion_tokens", None)
        wanted = "messages"
    else:
        wanted = "prompt"
        if isinstance(body.get("prompt"), list):
            body["prompt_token_ids"] = body.pop("prompt")
            wanted = "prompt_token_ids"
    if body.get(wanted) is None:
        raise LineError(f"body has no {wanted}, which {line.url} needs.")
    return parse_object(body, defaults, prompts)


def openai_body(line: BatchLine, request_id: str, output: RequestOutput) -> dict[str, Any]:
    """What the endpoint would answer. The model's name is the one that was asked for."""
    chat = line.url == CHAT_COMPLETIONS
    prompt_tokens = len(output.prompt_token_ids)
    output_tokens = sum(len(one.token_ids) for one in output.outputs)
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": line.body.get("model"),
        "choices": [_choice(one, chat) for one in output.outputs],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
        },
    }


def _choice(one: CompletionOutput, chat: bool) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": one.text}} if chat else {"text": one.text}
    return {"index": one.index, **said, "logprobs": None, "finish_reason": one.finish_reason}
