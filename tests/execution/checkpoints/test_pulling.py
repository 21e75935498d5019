"""Pulling from a hub that breaks off, lies or refuses; listing, finding and deleting what was pulled."""

from __future__ import annotations

import fcntl
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub
from gguf_files import convert

from inflight.execution import memory
from inflight.execution.checkpoints import fitting, hub_download
from inflight.execution.checkpoints import local_models as module
from inflight.execution.checkpoints.hub import pull_model, resolve_model
from inflight.execution.checkpoints.local_models import (
    LocalModel,
    delete_model,
    delete_unfinished,
    find_model,
    local_models,
    unfinished_downloads,
)
from inflight.execution.checkpoints.ollama_names import suggestion
from inflight.execution.checkpoints.pull_progress import PullStep
from inflight.execution.memory import MachineMemory
from inflight.models.errors import ModelError

CONTENT = bytes(range(256)) * 100_000  # longer than what the hub's client writes at once


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # of the client between attempts
    with fake_hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        hub.repositories["owner/name"] = {"Tiny-Q4_0.gguf": CONTENT}
        yield hub


def test_an_interrupted_download_goes_on_where_it_ended(hub: FakeHub) -> None:
    steps: list[PullStep] = []

    def stop(step: PullStep) -> None:
        if step.completed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_model("owner/name", report=stop)
    (left,) = unfinished_downloads()
    assert left.repository == "owner/name" and 0 < left.nbytes < len(CONTENT)
    assert local_models() == []
    path = pull_model("owner/name", report=steps.append)
    assert path.read_bytes() == CONTENT
    assert hub.ranges("Tiny-Q4_0.gguf") == ["", f"bytes={left.nbytes}-"]
    assert [one.status for one in steps if one.status != "downloading"] == ["asking", "verifying", "done"]
    came = [one for one in steps if one.status == "downloading"]
    assert came[0].completed == left.nbytes and came[-1].completed == came[-1].total == len(CONTENT)
    assert unfinished_downloads() == []


def test_a_connection_that_breaks_is_taken_up_again(hub: FakeHub) -> None:
    hub.cut_after, hub.cuts = 15_000_000, 1
    assert pull_model("owner/name:Q4_0").read_bytes() == CONTENT
    first, second = hub.ranges("Tiny-Q4_0.gguf")
    assert not first and second.startswith("bytes=")


def test_what_comes_with_another_digest_is_not_kept(hub: FakeHub) -> None:
    hub.corrupt = True
    with pytest.raises(ModelError, match=r"SHA-256 of Tiny-Q4_0\.gguf of owner/name, as it came, is .* Pull it again"):
        pull_model("owner/name")
    assert local_models() == [] and unfinished_downloads() == []
    hub.corrupt = False
    assert pull_model("owner/name").read_bytes() == CONTENT


def test_room_is_checked_before(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 5_000_000)
    monkeypatch.setattr(hub_download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"owner/name takes 26 MB more, but .* has 5 MB free; make room \(`inflight l"):
        pull_model("owner/name")
    assert hub.ranges("Tiny-Q4_0.gguf") == []


def test_a_disk_that_is_full_meanwhile_is_a_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_download._Counted, "write", full)
    with pytest.raises(
        ModelError, match=r"owner/name cannot be stored in .*: No space left on device\. It takes 26 MB"
    ):
        pull_model("owner/name")


def test_refusals_are_sentences(hub: FakeHub) -> None:
    with pytest.raises(ModelError, match=r"'owner/none' is no local folder, .* there is no such public model"):
        pull_model("owner/none")
    with pytest.raises(ModelError, match="it has no revision 'v9'"):
        pull_model("owner/name", "v9")
    hub.gated.add("owner/name")
    with pytest.raises(ModelError, match="its owner asks for consent first; accept the terms"):
        pull_model("owner/name")
    assert unfinished_downloads() == []


def test_what_is_cached_is_used_without_the_hub_and_without_writing(hub: FakeHub) -> None:
    steps: list[PullStep] = []
    path = pull_model("owner/name")
    hub.asked.clear()
    assert pull_model("owner/name:latest") == path
    assert [asked for _, asked, _ in hub.asked if "harness" not in asked] == ["/api/models/owner/name"]
    hub.repositories.clear()  # or it became private
    assert resolve_model("owner/name", report=steps.append) == path
    assert steps[-1].text == (
        "owner/name: the hub does not answer for it (RepositoryNotFoundError); the cached files are used."
    )


def steps_behind(lock: Path, hub: FakeHub, *unread: str) -> list[PullStep]:
    """Pull while the lock is held, until it waits, and then to its end. unread: files that it does not read before."""
    lock.parent.mkdir(parents=True)
    waits, steps = threading.Event(), list[PullStep]()

    def note(step: PullStep) -> None:
        steps.append(step)
        if step.status == "waiting":
            waits.set()

    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        pulling = threading.Thread(target=pull_model, args=("owner/name", None, note))
        pulling.start()
        assert waits.wait(60)
        assert not any(hub.ranges(name) for name in unread)
    pulling.join()
    return steps


def test_of_two_pulls_one_waits_and_says_so(hub: FakeHub, tmp_path: Path) -> None:
    lock = tmp_path / "hub" / ".locks" / "models--owner--name" / "pull.lock"
    steps = steps_behind(lock, hub, "Tiny-Q4_0.gguf")
    assert [one.text for one in steps if one.status == "waiting"] == [
        "owner/name: another process is pulling it; waiting for that."
    ]
    assert find_model("owner/name").path.read_bytes() == CONTENT


def test_the_lock_outlives_a_deleted_model(hub: FakeHub, tmp_path: Path) -> None:
    pull_model("owner/name")
    lock = tmp_path / "hub" / ".locks" / "models--owner--name" / "pull.lock"
    before = lock.stat().st_ino  # a pull that waits has it open
    delete_model(find_model("owner/name"))
    assert lock.stat().st_ino == before


def test_heads_are_read_one_pull_after_another(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["owner/name"]["Tiny-Q8_0.gguf"] = CONTENT[:-1]
    lock = hub_download.pull_lock(hub_download.repository_folder("owner/name"))
    steps = steps_behind(lock, hub, "Tiny-Q8_0.gguf", "Tiny-Q4_0.gguf")
    assert any(one.status == "done" for one in steps)


# -- a quantization by memory -----------------------------------------------------------------------------------------
def test_the_largest_that_fits_is_chosen_and_said(
    hub: FakeHub, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = convert(tiny, tmp_path / "Tiny-F32.gguf", "llama").read_bytes()
    hub.repositories["owner/name"] = {
        "config.json": b"{}",
        "Tiny-F32.gguf": whole + bytes(100),
        "Tiny-Q8_0.gguf": whole + bytes(2),
        "Tiny-Q4_0.gguf": whole + bytes(1),
        "Tiny-Q2_K.gguf": whole,
    }
    needed = {"Tiny-Q8_0.gguf": 3e9, "Tiny-Q4_0.gguf": 2e9, "Tiny-Q2_K.gguf": 1e9}
    monkeypatch.setattr(fitting, "_measured", lambda file: needed[file.name])
    steps: list[PullStep] = []

    def chosen(total: int) -> str:
        monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(total, total, "the machine"))
        return pull_model("owner/name", report=steps.append).name

    assert chosen(10 * 2**30) == "Tiny-Q8_0.gguf"
    assert chosen(3 * 2**30) == "Tiny-Q4_0.gguf"
    (_, why) = [one.text for one in steps if one.status == "chosen"]
    assert why == (
        "owner/name: Q4_0, 0 MB: the largest quantized one that leaves room for 8,192 tokens in 2.4 GiB, 80% of the "
        "memory of the machine. Others: owner/name:NAME with F32, Q2_K, Q8_0."
    )
    with pytest.raises(ModelError, match=r"owner/name has no GGUF file that leaves room .* the smallest is Q2_K, 0 MB"):
        chosen(2**30)


def test_needed_memory_is_read_from_the_head_of_a_file(tiny: Path, tmp_path: Path) -> None:
    file = convert(tiny, tmp_path / "Tiny-F32.gguf", "llama")
    measured = fitting._measured(file)
    with file.open("r+b") as opened:
        opened.seek(2**16)
        opened.truncate()
        opened.truncate(file.stat().st_size)
    assert measured is not None and measured > 0
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert fitting._measured(tmp_path / "other.gguf") is None


def test_one_that_is_cached_is_used_though_there_are_others(hub: FakeHub) -> None:
    path = pull_model("owner/name:Q4_0")
    hub.repositories["owner/name"]["Tiny-Q8_0.gguf"] = CONTENT[:-1]
    assert resolve_model("owner/name") == path


# -- on this machine --------------------------------------------------------------------------------------------------
def test_models_are_listed_found_and_deleted(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["owner/name"] = {"Tiny-Q4_0.gguf": CONTENT, "Tiny-Q8_0.gguf": CONTENT[1:], "README.md": b""}
    hub.repositories["other/folder"] = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}
    for name in ("owner/name:Q4_0", "owner/name:Q8_0", "other/folder"):
        pull_model(name)
    found = {one.name: one for one in local_models()}
    assert list(found) == ["other/folder", "owner/name:Q4_0", "owner/name:Q8_0"]
    assert found["owner/name:Q4_0"].nbytes == len(CONTENT) and found["owner/name:Q4_0"].quantization == "Q4_0"
    assert len(found["other/folder"].digest) == 64 and found["other/folder"].path.is_dir()
    with pytest.raises(ModelError, match="owner/name means 2 models here: owner/name:Q4_0, owner/name:Q8_0; name one"):
        find_model("owner/name")
    with pytest.raises(ModelError, match=r"smollm2 is not on this machine: .* hold 3 models; `inflight pull smollm2`"):
        find_model("smollm2")
    assert delete_model(find_model("hf.co/owner/name:q4_0")) == len(CONTENT)
    assert delete_model(find_model("owner/name")) >= len(CONTENT) - 1
    assert not (tmp_path / "hub" / "models--owner--name").exists()
    assert delete_model(find_model("other/folder")) > 0
    assert local_models() == []


def test_a_model_that_is_deleted_meanwhile_hides_no_other(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["other/folder"] = {"config.json": b"{}", "model.safetensors": b"weights"}
    for name in ("owner/name", "other/folder"):
        pull_model(name)
    of_snapshot = module._of_snapshot

    def gone(repository: str, snapshot: Path) -> Iterator[LocalModel]:
        if repository == "other/folder":
            raise FileNotFoundError(str(snapshot))
        return of_snapshot(repository, snapshot)

    monkeypatch.setattr(module, "_of_snapshot", gone)
    assert [one.name for one in local_models()] == ["owner/name:Q4_0"]


def test_files_that_links_of_the_user_name_stay(hub: FakeHub, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    link = pull_model("owner/name").parent / "Own-Q8_0.gguf"
    link.symlink_to(own)
    delete_model(find_model("owner/name:Q8_0"))
    assert own.exists() and not link.is_symlink()
    delete_model(find_model("owner/name"))
    assert own.exists() and local_models() == []


def test_an_interrupted_download_is_deleted(hub: FakeHub) -> None:
    partial = hub_download.repository_folder("owner/name") / "blobs" / f"abc{hub_download.PARTIAL}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"half")
    (left,) = unfinished_downloads()
    assert delete_unfinished(left) == 4 and unfinished_downloads() == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen3:4b", "Qwen/Qwen3-4B-GGUF"),
        ("qwen3", "Qwen/Qwen3-8B-GGUF"),
        ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
        ("gemma3:4b-it-qat", "ggml-org/gemma-3-4b-it-GGUF"),
        ("smollm2:135m", "smollm2"),
        ("all-minilm", "all-minilm-l6-v2"),
    ],
)
def test_a_name_of_ollama_is_answered_at_once(name: str, other: str, hub: FakeHub) -> None:
    assert suggestion(name) == other
    with pytest.raises(ModelError, match=rf"{name} is a name of ollama's library, .* use {other} \(`inflight pull"):
        resolve_model(name)
    assert not hub.asked


def test_any_other_name_without_an_owner_is_no_hub_id(hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="built-in is the model that comes with inflight; leave the model out"):
        resolve_model("built-in")
    with pytest.raises(ModelError, match=r"model 'smolm2' \(did you mean smollm2\?\) is no local folder or file, and"):
        resolve_model("smolm2")
    assert suggestion("none:1b") is None and not hub.asked
