"""The server with a .gguf file: its name in answers, its vocabulary and template in every process that needs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gguf_files import convert
from package_index import packaged, settings

from .conftest import Server


def test_a_file_is_served_under_its_name(start: Callable[..., Server], tiny: Path, tmp_path: Path) -> None:
    file = convert(tiny, tmp_path / "Tiny-F32.gguf", "llama")
    servers = [start("--dtype", "float32", str(one)) for one in (file, tiny)]
    assert [one["id"] for one in servers[0].get("/v1/models").json()["data"]] == ["Tiny-F32"]
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
    answers = [
        one.post("/v1/chat/completions", {**body, "model": name}).json()["choices"][0]["message"]["content"]
        for one, name in zip(servers, ("Tiny-F32", str(tiny)), strict=True)
    ]
    assert answers[0] == answers[1]


NAMED = """
import sys
if "inflight" in " ".join(sys.orig_argv):
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE, PackagedModel
    CATALOGUE["tiny"] = {model!r}
"""


def test_a_packaged_model_is_served_under_its_short_name(
    start: Callable[..., Server], tiny: Path, tmp_path: Path
) -> None:
    file = convert(tiny, tmp_path / "Tiny-F32.gguf", "llama")
    model = packaged(tmp_path / "index", file.read_bytes(), file.name)
    (tmp_path / "sitecustomize.py").write_text(NAMED.format(model=model), encoding="utf-8")  # in all processes
    server = start("tiny", env={**settings(tmp_path / "index"), "PYTHONPATH": str(tmp_path)})
    assert [one["id"] for one in server.get("/v1/models").json()["data"]] == ["tiny"]
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "model": "tiny"}
    assert server.post("/v1/chat/completions", body).json()["usage"]["completion_tokens"] > 0
    assert any("tiny: pulled" in line and "licence: MIT" in line for line in server.log)
