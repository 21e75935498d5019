"""guidellm: a short load test with prompts that it makes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inflight

from .cases import KEY
from .environments import Environment
from .tap import Tap

pytestmark = pytest.mark.foreign
CLIENT = "guidellm"
TOKENIZER = Path(inflight.__file__).parent / "builtin_model"
REQUESTS = 24


@pytest.mark.parametrize(
    ("endpoint", "stream", "profile"),
    [("chat/completions", True, "kind=concurrent,streams=4"), ("completions", False, "kind=constant,rate=20")],
)
def test_every_request_is_answered_in_full(
    environment: Environment, tap: Tap, tmp_path: Path, endpoint: str, stream: bool, profile: str
) -> None:
    """The client counts by what the server's usage says."""
    target = f"target={tap.url},api_key={KEY},request_format=/v1/{endpoint},stream={str(stream).lower()}"
    environment.run(
        "guidellm",
        *("run", "--disable-progress"),
        *("--backend", f"kind=openai_http,{target}"),
        *("--profile", profile),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"),
        *("--output", f"kind=json,path={tmp_path / 'report.json'}"),
    )
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    metrics: dict[str, Any] = report["benchmarks"][0]["metrics"]
    totals, counts = metrics["request_totals"], metrics["output_token_count"]["successful"]
    assert totals["successful"] == REQUESTS and totals["errored"] == 0
    assert counts["min"] == counts["max"] == 16
    assert metrics["prompt_token_count"]["successful"]["min"] >= 64
    assert (metrics["time_to_first_token_ms"]["successful"]["mean"] > 0) == stream
    assert {body.get("stream", False) for body in tap.bodies(f"/v1/{endpoint}")} == {stream}
