"""Records of version 1, as lines of version 2.

Version 1 had names of its own for what core's types say: it is read, and no longer written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.records.checked import Malformed

_REQUIRED = (
    *("request_id", "prompt_token_ids", "params", "seed", "arrival", "lane", "tenant", "priority", "slo", "cache_salt"),
)
_OPTIONAL = ("session", "forced_output_tokens", "grammar", "call_marks", "pooling", "second_text_at", "adapter")
_FINISH = {"finish_reason": "reason", "stopped_by": "stopped_by", "detail": "detail"}
_PLAN = ("step", "freed_rows", "padding", "held_back")


def upgraded(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of version 1 with the names of version 2.

    Raises:
        Malformed: The line is damaged where the names differ; types are checked as those of version 2 are.
    """
    try:
        match line["kind"]:
            case "header":
                return {**line, "capacity": _renamed(line["capacity"], {"whole_texts": "encoder_only"})}
            case "step":
                return _step(line)
            case "request":
                return _request(line)
            case "transfers":
                return {**line, "transferred": [_transferred(one) for one in line["transferred"]]}
            case "service":
                return _renamed(line, {"told": "received"})
    except KeyError as error:
        raise Malformed(f"lacks {error}") from None
    except (TypeError, AttributeError, ValueError):
        raise Malformed("holds something else than a record of version 1 has") from None
    return dict(line)


def _renamed(entry: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in entry.items()}


def _step(line: Mapping[str, Any]) -> dict[str, Any]:
    moves = line["moves"]
    copies = (("store", moves["out"]), ("load", [(device, host) for host, device in moves["back"]]))
    plan = {name: line[name] for name in _PLAN if name in line} | {
        "chunks": [_chunk(one) for one in line["chunks"]],
        "new_requests": [_renamed(one, {"prompt_tokens": "prompt_length"}) for one in line["new_rows"]],
        "transfers": [
            {
                "transfer_id": 0,
                "kind": kind,
                "tier": "host",
                "blocks": [device for device, _ in pairs],
                "remote_blocks": [host for _, host in pairs],
            }
            for kind, pairs in copies
            if pairs
        ],
        "adapter_loads": [
            {"transfer_id": one["ticket"], "slot": one["slot"], "adapter": _renamed(one, {})}
            for one in line.get("adapter_loads", ())
        ],
    }
    return {
        **line,
        "plan": plan,
        "transferred": [_transferred(one) for one in line.get("transferred", ())],
        "faults": [_renamed(one, {"sequence": "sequence_id"}) for one in line.get("faults", ())],
    }


def _chunk(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Version 1 says whether a chunk samples, and how many drafts it has only where the executor made them."""
    drafts = entry.get("num_drafts", 0) or len(entry.get("draft_token_ids", ()))
    chunk = _renamed(entry, {"sequence": "sequence_id"})
    return {**chunk, "sample": 1 + drafts if entry["sample"] else 0, "num_drafts": drafts}


def _transferred(entry: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(entry, {"ticket": "transfer_id"})


def _request(line: Mapping[str, Any]) -> dict[str, Any]:
    request = {name: line[name] for name in _REQUIRED} | {name: line[name] for name in _OPTIONAL if name in line}
    if "handed_tokens" in line:
        request["num_external_tokens"] = line["handed_tokens"]
    samples = [
        {
            "sequence_id": one["sequence"],
            "token_ids": one["token_ids"],
            "finish": {name: one[old] for old, name in _FINISH.items() if old in one},
        }
        for one in line["samples"]
    ]
    return {**line, "request": request, "samples": samples}
