"""Classes of traffic: what a file says, and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.metrics.observation import Targets
from inflight.workload.arrivals import Gamma
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass, read_classes
from inflight.workload.lengths import Fixed, Lognormal, Uniform
from inflight.workload.workload import WorkloadError

FULL = """
[classes.chat]
share = 0.8
input = "lognormal:200:2000"
output = "uniform:10-90"
max_tokens = 80
lane = "interactive"
tenant = "acme"
priority = 2
ttft_ms = 500
tpot_ms = 60
itl_ms = 100.5
e2e_ms = 9000
prefix = { system_tokens = 512, groups = 4, group_tokens = 256, skew = 1.1 }
sessions = { turns = "uniform:1-5", think_s = 4.0, added = 30 }

[classes.nightly]
arrivals = "gamma:0.5:0.3"
input = 2000
output = 100
lane = "batch"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "classes.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_everything_that_python_can(tmp_path: Path) -> None:
    chat, nightly = read_classes(written(tmp_path, FULL))
    assert chat == TrafficClass(
        name="chat",
        share=0.8,
        input=Lognormal(200, 2000),
        output=Uniform(10, 90),
        max_tokens=80,
        lane="interactive",
        tenant="acme",
        priority=2,
        targets=Targets(ttft=0.5, tpot=0.06, itl=0.1005, e2e=9.0),
        prefix=SharedPrefixes(system_tokens=512, groups=4, group_tokens=256, skew=1.1),
        sessions=Sessions(turns=Uniform(1, 5), think_s=4.0, added=Fixed(30)),
    )
    assert nightly == TrafficClass(
        name="nightly", arrivals=Gamma(0.5, 0.3), input=Fixed(2000), output=Fixed(100), lane="batch"
    )
    assert not nightly.targets


GOOD = "[classes.a]\nshare = 1\ninput = 5\noutput = 5\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no class of traffic"),
        ("[lanes.a]\n", "unknown key 'lanes'; known are classes"),
        (GOOD + "colour = 3\n", r"\[classes.a\] has the unknown key 'colour'"),
        (GOOD + "prefix = {groups = 2, size = 3}\n", "prefix.*'size'"),
        (GOOD + "sessions = {turn = 3}\n", "sessions.*'turn'"),
        (GOOD + "sessions = 3\n", "sessions is 3; give a table"),
        ("[classes.a]\nshare = 1\noutput = 5\n", "no input lengths"),
        ("[classes.a]\ninput = 5\noutput = 5\n", "give one of them"),
        ("[classes.a]\nshare = 1\narrivals = 'poisson:1'\ninput = 5\noutput = 5\n", "give one of them"),
        ("[classes.a]\nshare = 0\ninput = 5\noutput = 5\n", "share 0"),
        ("[classes.a]\narrivals = 'at-once'\ninput = 5\noutput = 5\n", "comes at once, without end"),
        ("[classes.a]\nshare = 1\ninput = 5.5\noutput = 5\n", "input is 5.5"),
        ("[classes.a]\nshare = 1\ninput = 'lots'\noutput = 5\n", r"\[classes.a\]: Lengths 'lots'"),
        ("[classes.a]\nshare = '1'\ninput = 5\noutput = 5\n", "share is '1'; give a number"),
        ("[classes.a]\nshare = 1\npriority = 1.5\ninput = 5\noutput = 5\n", "priority is 1.5; give a whole number"),
        ("[classes.a]\nshare = 1\nlane = 1\ninput = 5\noutput = 5\n", "lane is 1; give a word"),
        ("[classes.a]\nshare = 1\nttft_ms = 0\ninput = 5\noutput = 5\n", "ttft_ms is 0"),
        ("[classes.a]\nshare = 1\nmax_tokens = 0\ninput = 5\noutput = 5\n", "max_tokens 0"),
        (GOOD + "prefix = {groups = 2}\n", "2 groups of 0 tokens"),
        ("[classes", "cannot be read"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        read_classes(written(tmp_path, text))
    with pytest.raises(WorkloadError, match=r"nothing\.toml cannot be read"):
        read_classes(tmp_path / "nothing.toml")


def test_the_example_of_the_documentation_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    chat, nightly = read_classes(written(tmp_path, page.split("```toml")[1].split("```")[0]))
    assert chat.sessions.several and chat.prefix.tokens == 768 and nightly.max_tokens == 400
