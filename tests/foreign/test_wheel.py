"""The wheel: built from this checkout, named by what it needs, installed beside nothing of it, and asked.

`scripts/wheel` does all of that, and fails where a part does; here it is run, and what it left is looked at.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(1800)]  # the kernels are compiled
ROOT = Path(__file__).parents[2]


def test_it_is_installed_without_the_checkout_and_answers(tmp_path: Path) -> None:
    ended = subprocess.run(
        [ROOT / "scripts" / "wheel", tmp_path], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "answered" in ended.stderr
    wheel = Path(ended.stdout.strip())
    assert wheel.parent == tmp_path
    assert re.fullmatch(r"inflight_llm-[\d.]+-cp3\d+-cp3\d+-manylinux_2_\d+_\w+\.whl", wheel.name)
    with ZipFile(wheel) as packed:
        names = packed.namelist()
    assert {"inflight/py.typed", "inflight/builtin_model/model.safetensors"} <= set(names)
    templates = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "inflight").rglob("templates/*.*")
    }
    assert len(templates) > 10 and templates <= set(names), "plans and reports are written by templates"
    natives = {Path(one).name.partition(".")[2] for one in names if "_native" in one}
    assert len(natives) == 2 and "sources" in natives, "the module, and the hash of what it was compiled of"
    assert {one.partition("/")[0] for one in names} == {"inflight", wheel.name.partition("-cp")[0] + ".dist-info"}
