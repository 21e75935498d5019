"""Modules that a fresh interpreter loads: nothing heavy for the package, no torch and no transformers for anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "tokenizers", "jinja2", "click", "rich", "huggingface_hub", "torch", "transformers", "safetensors")


def modules(program: str) -> set[str]:
    """Modules in a fresh interpreter after a program. Its own output goes before the last line."""
    shown = f"{program}\nimport sys\nprint(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def loaded(program: str) -> set[str]:
    """Top-level packages, as `modules`."""
    return {name.partition(".")[0] for name in modules(program)}


def test_the_package_alone_loads_nothing() -> None:
    names = loaded("import inflight; inflight.__version__; dir(inflight)")
    assert names.isdisjoint(HEAVY)
    assert "typing" not in names, "it takes longer than all else"


def test_metrics_records_and_core_need_the_standard_library_only() -> None:
    modules = "inflight.core.scheduling.scheduler, inflight.engine.loop, inflight.testing.null, inflight.engine.bridge"
    assert loaded(f"import {modules}, inflight.metrics.summary, inflight.records.schema").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "program",
    [
        "import inflight.api",
        "from inflight import LLM, SamplingParams\nLLM(threads=1).generate('hello', SamplingParams(max_tokens=2))",
        "from inflight.cli import call\nassert call(['run', 'hello', '--max-tokens', '2']) == 0",
    ],
)
def test_nothing_at_run_time_loads_torch(program: str) -> None:
    names = loaded(program)
    assert names.isdisjoint({"torch", "transformers", "safetensors", "huggingface_hub"})
    assert "numpy" in names


def test_running_a_model_loads_its_family_and_kinds_of_layers_alone_and_no_other_application() -> None:
    names = modules("from inflight.cli import call\nassert call(['run', 'hello', '--max-tokens', '1']) == 0")
    families = {name for name in names if name.startswith("inflight.models.families.")}
    assert families == {"inflight.models.families.llama"}
    kinds = {name for name in names if name.startswith(("inflight.execution.mixers.", "inflight.execution.mlps."))}
    assert kinds == {"inflight.execution.mixers.attention", "inflight.execution.mlps.dense"}
    applications = ("api", "bench", "metrics", "planning", "report", "server", "simulate", "workload")
    assert names.isdisjoint({f"inflight.{application}" for application in applications})


def test_running_a_model_loads_no_parts_that_few_starts_have() -> None:
    """Peers, folders of blocks, heads and draft models, other ranks, downloads, records."""
    names = modules("from inflight.cli import call\nassert call(['run', 'hello', '--max-tokens', '1']) == 0")
    absent = {
        *(
            "kv.transfer.peer_transfers",
            "tiers.folder_tier",
            "drafters.heads.heads_source",
            "drafters.draft_model_source",
        ),
        *("parallel.workers", "checkpoints.packaged.model_cache"),
    }
    assert names.isdisjoint({f"inflight.execution.{one}" for one in absent} | {"inflight.engine.recorder"})


@pytest.mark.parametrize("module", ["inflight.models.known", "inflight.text.chat_encoder"])
def test_models_and_text_make_no_dataclasses(module: str) -> None:
    """Each is half a millisecond of every start."""
    assert "dataclasses" not in modules(f"import {module}")


def test_running_a_model_makes_few_dataclasses() -> None:
    """Each is a quarter of a millisecond of every start, and a struct a thirtieth of that: there were 144."""
    program = """
from inflight.cli import call
assert call(["run", "hello", "--max-tokens", "1"]) == 0
made, classes = set(), [object]
while classes:
    one = classes.pop()
    classes += type.__subclasses__(one)
    if "__dataclass_fields__" in vars(one):
        made.add((one.__module__, one.__qualname__))
assert 10 < len(made) < 80, made
"""
    modules(program)


def test_the_server_loads_no_torch_and_no_model_code() -> None:
    first = {name.partition(".")[0] for name in modules("import inflight.launch.one_model")}
    assert first.isdisjoint({"starlette", "uvicorn", "uvloop", "zmq", "numpy"}), "it starts those that need them"
    whole = modules("import inflight.server.processes.child")
    names = {name.partition(".")[0] for name in whole}
    assert names.isdisjoint({"torch", "transformers", "safetensors", "huggingface_hub", "numpy", "rich"})
    assert "opentelemetry.sdk" not in whole, "for those who want traces"
    assert {"starlette", "uvicorn"} <= names and names.isdisjoint({"fastapi", "pydantic"})


def test_help_and_mistakes_load_no_model_code() -> None:
    program = "from inflight.cli import call\ncall(['run', '--help']); call(['run', '--max-tokens', '-1', 'x'])"
    assert loaded(program).isdisjoint({"numpy", "tokenizers", "jinja2", "rich"})
