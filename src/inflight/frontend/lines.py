"""Parse the input lines and write the output lines of `inflight run` (JSONL)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from msgspec import Struct

from inflight.core.types.sampling import SamplingParams, TokenLogprob
from inflight.counted import quoted
from inflight.frontend.fields import PLACEMENT_FIELDS, Placement, placement, with_fields
from inflight.frontend.logprobs import finite
from inflight.frontend.outputs import RequestOutput
from inflight.frontend.prompts import PromptEncoder
from inflight.text import Conversation

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "messages")
OTHER_FIELDS = ("output_tokens", *PLACEMENT_FIELDS)
_KINDS = {
    dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"
}  # fmt: skip


class LineError(ValueError):
    """Raised for an input line that cannot be served."""


class InputLine(Struct, frozen=True):
    """One prompt with its parameters.

    Attributes:
        forced_output_tokens: Exact length of the answer, for traces and benchmarks.
        placement: Scheduling fields, as arguments for `PromptEncoder.request`.
    """

    prompt_token_ids: tuple[int, ...]
    prompt: str | None
    params: SamplingParams
    forced_output_tokens: int | None
    placement: Placement


def parse_line(line: str, defaults: SamplingParams, prompts: PromptEncoder) -> InputLine:
    """Parse a line. Raises LineError, PromptError, InvalidSampling or a text error, which are all ValueErrors."""
    return parse_object(json_object(line), defaults, prompts)


def parse_object(data: dict[str, Any], defaults: SamplingParams, prompts: PromptEncoder) -> InputLine:
    """Parse a line that was read as JSON already; as `parse_line`."""
    given = [name for name in PROMPT_FIELDS if data.get(name) is not None]
    if len(given) != 1:
        raise LineError(f"has {', '.join(given) or 'no prompt'}; give exactly one of {', '.join(PROMPT_FIELDS)}.")
    params = with_fields(defaults, data, beside=PROMPT_FIELDS + OTHER_FIELDS)
    if data.get("output_tokens") is not None and "max_tokens" not in data:
        # A trace that gives the answer's length needs no max_tokens: the default must not cut it.
        params = replace(params, max_tokens=None)
    text, token_ids = _prompt(data, given[0], prompts)
    return InputLine(token_ids, text, params, _forced(data, params), placement(data))


def json_object(line: str) -> dict[str, Any]:
    """Read a line as a JSON object; invalid bytes are surrogates (errors="surrogateescape"). Raises LineError."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise LineError(f"not JSON: {error.msg} at character {error.pos + 1}.") from None
    except RecursionError:
        raise LineError("not usable: the JSON is nested too deeply.") from None
    except ValueError:  # Python reads no longer ones
        raise LineError("not usable: it holds a number of thousands of digits.") from None
    if not isinstance(data, dict):
        raise LineError(f'a JSON {_KINDS[type(data)]}; write an object such as {{"prompt": "…"}}.')
    # Only the reader's surrogates for invalid bytes are in this range; escaped ones of the JSON text are not yet read.
    broken = next((n for n, character in enumerate(line, 1) if "\udc80" <= character <= "\udcff"), None)
    if broken is not None:
        byte = ord(line[broken - 1]) - 0xDC00
        raise LineError(f"not UTF-8: byte 0x{byte:02X} at character {broken}; convert the file to UTF-8.")
    return data


def _prompt(data: dict[str, Any], kind: str, prompts: PromptEncoder) -> tuple[str | None, tuple[int, ...]]:
    value = data[kind]
    if kind == "messages":
        encoded = prompts.chat(Conversation(value))
        return encoded.text, encoded.token_ids
    if kind == "prompt":
        if not isinstance(value, str):
            raise LineError(f"prompt is a JSON {_KINDS[type(value)]}; give text, or prompt_token_ids.")
        return value, prompts.tokens(value)
    if not isinstance(value, list):
        raise LineError(f"prompt_token_ids is a JSON {_KINDS[type(value)]}; give a list of whole numbers.")
    return None, prompts.tokens(value)


def _forced(data: dict[str, Any], params: SamplingParams) -> int | None:
    value = data.get("output_tokens")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise LineError(f"output_tokens is {quoted(value)}; give a whole number above 0.")
    if value is not None and params.max_tokens is not None and value > params.max_tokens:
        raise LineError(f"output_tokens is {value}, but max_tokens is {params.max_tokens}; raise max_tokens.")
    return value


def output_line(index: int, output: RequestOutput) -> dict[str, Any]:
    """Return the line of a finished request. With n > 1, `samples` has all samples, and the first is also on top."""
    samples = [_sample(one) for one in output.outputs]
    line: dict[str, Any] = {"index": index, **samples[0]}
    line["prompt_tokens"] = len(output.prompt_token_ids)
    line["output_tokens"] = sum(len(one.token_ids) for one in output.outputs)
    line["cached_tokens"] = output.num_cached_tokens
    if output.prompt_token_logprobs is not None:
        line["prompt_logprobs"] = [None, *map(logprob_json, output.prompt_token_logprobs)]
    if len(samples) > 1:
        line["samples"] = samples
    if output.timings is not None:
        line["timings"] = output.timings.to_json()
    return line


def _sample(one: Any) -> dict[str, Any]:
    sample = {"text": one.text, "token_ids": one.token_ids, "finish_reason": one.finish_reason}
    if one.stop_reason is not None:
        sample["stop_reason"] = one.stop_reason
    if one.detail is not None:
        sample["detail"] = one.detail
    if one.token_logprobs is not None:
        sample["logprobs"] = [logprob_json(entry) for entry in one.token_logprobs]
    return sample


def logprob_json(entry: TokenLogprob) -> dict[str, Any]:
    top = [[token_id, finite(value)] for token_id, value in entry.top]
    return {"token_id": entry.token_id, "logprob": finite(entry.logprob), "top": top}
