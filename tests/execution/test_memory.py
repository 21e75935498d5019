"""KV memory: what the machine has, and how a setting becomes blocks or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.execution.backends.protocol import KVLayer, KVShape
from inflight.execution.memory import (
    GIB,
    KVSize,
    MachineMemory,
    StateSize,
    gib,
    kv_shape,
    kv_size,
    machine_memory,
    state_size,
)
from inflight.models.errors import ModelError
from inflight.models.registry import read_spec
from inflight.models.sequence_memory import host_checkpoints

CONFIG = read_spec(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
)
SHAPE = kv_shape(CONFIG, 16)
BLOCK_BYTES = GIB // 64


def size(**settings: Any) -> KVSize:
    chosen = {"max_num_seqs": 8, "max_model_len": 100, "memory": MachineMemory(8 * GIB, 4 * GIB, "the machine")}
    return kv_size(SHAPE, BLOCK_BYTES, **{**chosen, **settings})


def states(gibs: float | None = None, rows: int = 8, each: int = GIB // 16) -> StateSize:
    return state_size(each, rows, gibs, MachineMemory(8 * GIB, 4 * GIB, "the machine"))


def test_recurrent_states_are_live_ones_and_snapshots() -> None:
    usual = states(rows=4)
    assert (usual.snapshots, usual.nbytes) == (8, 13 * GIB // 16)
    assert usual.reason.startswith("512.0 MiB, two for each sequence, beside 320.0 MiB for the live states of 4 seq")
    scarce = states(rows=32)
    assert (scarce.snapshots, scarce.nbytes) == (7, 40 * GIB // 16)
    assert "448.0 MiB, a quarter of what is free beside, beside 2.1 GiB" in scarce.reason
    small = states(each=GIB // 2048)
    assert small.snapshots == 127 and "16 for each sequence, since they are small" in small.reason
    assert states(0.7).snapshots == 11 and "as --state-memory 0.7 asks" in states(0.7).reason
    assert states(each=0) == StateSize(0, 0, "")


def test_a_quarter_of_the_hosts_memory_is_for_snapshots() -> None:
    each, machine = GIB // 16, MachineMemory(8 * GIB, 4 * GIB, "the machine")
    added = host_checkpoints(2 * GIB, each)
    assert added == 8 and host_checkpoints(2 * GIB, 0) == 0
    usual, more = states(rows=4), state_size(each, 4, None, machine, added)
    assert (more.snapshots, more.nbytes) == (usual.snapshots + 8, usual.nbytes + GIB // 2)
    assert "two for each sequence, and 512.0 MiB of --kv-cache-host, beside" in more.reason
    with pytest.raises(ModelError, match=r"3\.5 GiB of it as a quarter of --kv-cache-host"):
        state_size(each, 4, None, machine, 56)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gibs": 0.01}, "--state-memory 0.01 GiB is less than one snapshot \\(64.0 MiB\\)"),
        ({"gibs": 3.9}, "--state-memory 3.9 GiB beside 576.0 MiB .* 8 sequences .* is more than the 4.0 GiB"),
        ({"rows": 64}, "4.1 GiB for the live states of 64 sequences .* and one snapshot, .* lower --max-num-seqs"),
        ({"gibs": 1.0, "each": 0}, "--state-memory is 1 GiB, but .* 0 bytes of recurrent state; leave it out"),
    ],
)
def test_states_that_do_not_fit_are_refused_with_the_number(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        states(**given)


def test_the_shape_follows_the_model() -> None:
    assert KVShape(16, (KVLayer(0, 4, 16, 16),) * 4) == SHAPE
    for wrong in (0, 8, 24):
        with pytest.raises(ModelError, match=f"a multiple of 16 tokens, not {wrong}"):
            kv_shape(CONFIG, wrong)


def test_by_default_no_more_than_could_be_used() -> None:
    got = size()
    assert (got.num_blocks, got.nbytes) == (8 * 7, 56 * BLOCK_BYTES)
    assert (
        got.reason
        == "896.0 MiB for 56 KV blocks of 16 tokens (896 tokens), all that 8 sequences of 100 tokens can fill"
    )


def test_by_default_half_of_what_is_free() -> None:
    got = size(max_num_seqs=1000)
    assert got.num_blocks == 128
    assert got.reason.endswith("half of the 4.0 GiB that the machine has free")


def test_settings_decide() -> None:
    assert size(kv_memory_gib=0.5).num_blocks == 32
    assert size(num_blocks=3).num_blocks == 3
    assert "as --num-blocks asks; longer requests are refused" in size(num_blocks=3).reason
    assert "refused" not in size(num_blocks=7).reason


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kv_memory_gib": 0.01}, r"--kv-memory 0.01 GiB is less than one block of 16 tokens \(16.0 MiB\)"),
        ({"kv_memory_gib": 0}, "above 0, not 0"),
        ({"kv_memory_gib": float("nan")}, "above 0, not nan"),
        ({"kv_memory_gib": float("inf")}, "above 0, not inf"),
        ({"num_blocks": 0}, "--num-blocks must be at least 1, not 0"),
        ({"kv_memory_gib": 5}, "would take 5.0 GiB, but only 4.0 GiB of the 8.0 GiB of the machine are free"),
        ({"num_blocks": 1000}, "would take 15.6 GiB, but only 4.0 GiB"),
        ({"num_blocks": 1, "kv_memory_gib": 1}, "give one of them"),
        (
            {"memory": MachineMemory(GIB, GIB // 64, "the container")},
            "16.0 MiB of the 1.0 GiB of the container are free",
        ),
    ],
)
def test_too_little_and_too_much(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        size(**settings)


def test_what_drafters_keep_counts_with_each_block() -> None:
    with_drafts = size(kv_memory_gib=1, drafter_bytes=BLOCK_BYTES)
    assert with_drafts.num_blocks == 32 and with_drafts.nbytes == GIB
    assert with_drafts.reason.startswith("1.0 GiB (512.0 MiB of it for drafts) for 32 KV blocks of 16 tokens (512 tok")
    with pytest.raises(ModelError, match=r"take 5\.0 GiB \(2\.5 GiB of it for drafts\), but only 4\.0 GiB of the 8\.0"):
        size(num_blocks=160, drafter_bytes=BLOCK_BYTES)


def test_sizes_for_people() -> None:
    assert [gib(n) for n in (0, 2048, 5 * 1024**2, 3 * GIB)] == ["0 bytes", "2.0 KiB", "5.0 MiB", "3.0 GiB"]


# -- the machine --------------------------------------------------------------------------------------------------
def machine(root: Path, files: dict[str, str]) -> MachineMemory:
    files = {"proc/meminfo": "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return machine_memory(root)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert machine(tmp_path, {}) == MachineMemory(8 * GIB, 4 * GIB, "the machine")


def test_a_container_of_version_2(tmp_path: Path) -> None:
    got = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
        },
    )
    assert got == MachineMemory(2 * GIB, 3 * GIB // 2, "the container")


def test_a_container_of_version_1_seen_from_inside(tmp_path: Path) -> None:
    """The path in /proc is the host's; inside, the limit sits on the mount itself."""
    got = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 4}\n",
        },
    )
    assert got == MachineMemory(GIB, 3 * GIB // 4, "the container")


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    assert machine(tmp_path, files).limited_by == "the machine"


def test_this_machine_has_memory() -> None:
    got = machine_memory()
    assert 0 < got.available <= got.total


def test_without_an_account_half_is_guessed(tmp_path: Path) -> None:
    got = machine_memory(tmp_path)
    assert got.available == got.total // 2 > 0
