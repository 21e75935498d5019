"""Start lines of vLLM and llama-server, given to `serve` as people type them: each works, or is refused with advice."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Server

from inflight.build import BUILT_IN
from inflight.cli import call

PAGE = Path(__file__).parents[2] / "docs" / "from-vllm.md"
_ROW = re.compile(r"^\| (?P<lines>`.+?) \| (?P<outcome>(?:works|refused).*?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    """Return the start lines of the page, and what it says of each."""
    section = PAGE.read_text(encoding="utf-8").partition("## Start lines")[2].partition("\n## ")[0]
    found = []
    for row in _ROW.finditer(section):
        for line in re.findall(r"`([^`]+)`", row["lines"]):
            found.append((line if "MODEL" in line else f"MODEL {line}", row["outcome"]))
    return found


def printed(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of `serve --print-config`, what it prints, and standard error."""
    code = call(["serve", "--print-config", *shlex.split(line)])
    out, err = capsys.readouterr()
    return code, tomllib.loads(out), err


@pytest.mark.parametrize(("line", "outcome"), rows())
def test_each_line_of_the_page_does_as_it_says(
    line: str, outcome: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    template = tmp_path / "a.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    for name, value in (("MODEL", str(BUILT_IN)), ("FILE.jinja", str(template)), ("{…}", "{}")):
        line = line.replace(name, value)
    code, settings, err = printed(capsys, line)
    if outcome.startswith("works"):
        assert (code, settings["model"]) == (0, str(BUILT_IN)), err
        return
    assert code and not settings
    instead = re.findall(r"`(--[\w-]+)", outcome)
    assert all(option in err for option in instead), err


def test_the_page_has_the_commonest_lines() -> None:
    assert len(rows()) >= 25


LLAMA_SERVER: dict[str, dict[str, Any] | str] = {
    "-m a.gguf": {"model": "a.gguf"},
    "-hf a/b:Q4_K_M": {"model": "a/b:Q4_K_M"},
    "-m a.gguf --host 0.0.0.0 --port 8080": {"host": "0.0.0.0", "port": 8080},
    "-m a.gguf -c 4096": {"max-model-len": 4096},
    "-m a.gguf --ctx-size 8192": {"max-model-len": 8192},
    "-m a.gguf -c 0": {},
    "-m a.gguf -np 4": {"max-num-seqs": 4},
    "-m a.gguf --parallel 2 -cb": {"max-num-seqs": 2},
    "-m a.gguf -b 512 -ub 512": {"max-num-batched-tokens": 512},
    "-m a.gguf -t 4 -tb 4": {"threads": 4},
    "-m a.gguf -ngl 99": {},
    "-m a.gguf -ngl 0": {"device": "cpu"},
    "-m a.gguf -a x,y": {"served-model-name": ["x", "y"]},
    "-m a.gguf -fa on": {},
    "-m a.gguf --jinja": {},
    "-m a.gguf --mlock --no-mmap": {},
    "-m a.gguf -ctk q8_0 -ctv q8_0": {"kv-cache-dtype": "int8"},
    "-m a.gguf -ctk q4_0": "--kv-cache-dtype int8",
    "-m a.gguf --temp 0.7 --top-k 20": {"override-generation-config": '{"temperature": 0.7, "top_k": 20}'},
    "-m a.gguf --min-p 0.05 --repeat-penalty 1.1": {
        "override-generation-config": '{"min_p": 0.05, "repetition_penalty": 1.1}'
    },
    "-m a.gguf -md d.gguf --draft-max 16": {"speculation": "draft:d.gguf", "speculation-max-tokens": 16},
    "-m a.gguf --reasoning-budget 0": {"chat-template-kwargs": '{"enable_thinking": false}'},
    "-m a.gguf --chat-template-kwargs '{\"a\": 1}'": {"chat-template-kwargs": '{"a": 1}'},
    "-m a.gguf --embeddings --pooling mean": {"pooling": "mean"},
    "-m a.gguf --no-webui --slots --metrics": {"no-ui": True},
    "-m a.gguf --props": "settings and files of a running server do not change",
    "-m a.gguf --seed 7": {"seed": 7},
    "-m a.gguf --mmproj b.gguf": "models read text alone",
    "-m a.gguf -n 128": "--max-tokens",
    "-m a.gguf --rope-scaling yarn": "is not supported",
    "-m a.gguf --grammar-file x.gbnf": "is not supported",
    "-m a.gguf --slot-save-path /tmp": "--kv-cache-dir",
}


@pytest.mark.parametrize("line", LLAMA_SERVER)
def test_each_flag_of_llama_server_works_or_is_refused_with_what_to_use(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = LLAMA_SERVER[line]
    code, settings, err = printed(capsys, line)
    if isinstance(expected, str):
        assert (code, settings) == (2, {}) and expected in err
        return
    assert code == 0, err
    assert expected.items() <= settings.items()


@pytest.mark.parametrize(
    "line",
    [
        "MODEL --dtype auto --max-model-len 512 --served-model-name qwen gpt-4 --trust-remote-code -tp 1 "
        "--max_num_seqs 4 --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser hermes",
        "-m MODEL -c 512 -np 2 -b 256 -ub 256 -t 1 -ngl 0 -a qwen,gpt-4 -fa on --jinja --temp 0 --mlock",
    ],
)
def test_a_server_started_with_such_a_line_answers(line: str) -> None:
    server = Server(*shlex.split(line.replace("MODEL", str(BUILT_IN)))).ready()
    for name in ("qwen", "gpt-4"):
        answer = server.post("/v1/completions", {"model": name, "prompt": "A block is", "max_tokens": 4})
        assert answer.json()["usage"]["completion_tokens"] == 4, answer.text
    assert server.stop() == 0
