"""Putting an engine together: what it leaves behind in the process that does it."""

from __future__ import annotations

import gc
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from text_models import write_embedder

from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.kv.prefix_cache import KVEventQueue


def test_a_start_is_logged_by_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "inflight.build"):
        engine = build_engine(EngineSettings(threads=1))
    engine.loop.close()
    assert engine.start.weights > 0 and engine.start.memory > 0 and engine.start.warm_up >= 0
    assert engine.start.header > 0 and engine.start.text > 0
    (message,) = (one for one in caplog.messages if one.startswith("Loaded: "))
    assert all((f"{name} {seconds:.2f} s" in message) == (seconds >= 0.01) for name, seconds in engine.start.parts())


@pytest.mark.parametrize("quantization", ["int8", "int4", "int4-all"])
def test_a_start_with_int4_says_what_it_costs(quantization: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = EngineSettings(threads=1, quantization=quantization)  # type: ignore[arg-type]
    build_engine(settings).loop.close()
    said = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == (quantization != "int8")
    for message in said:
        assert message.startswith(f"--quantization {quantization} rounds weights without calibration, which cost ")
        assert "take --quantization int8, or a checkpoint that was calibrated (GGUF Q4_K_M, AWQ, GPTQ)." in message


@pytest.mark.parametrize("library", ["flash-attn", "flashinfer"])
def test_a_library_of_attention_is_read_and_has_no_effect(library: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = build_engine(EngineSettings(threads=1, attention_backend=library))  # type: ignore[arg-type]
    engine.loop.close()
    (message,) = (one.message for one in caplog.records if one.levelno == logging.WARNING)
    assert message == (
        f"--attention-backend {library} has no effect: inflight's own kernels compute attention, and no longer a "
        "library; leave the option out."
    )
    resolved = engine.settings["attention_backend"]
    assert (resolved.value, resolved.reason) == ("auto", f"our own kernels; {library} has no effect")
    with pytest.raises(SettingsError, match="known are auto, flash-attn, flashinfer"):
        EngineSettings(attention_backend="triton")  # type: ignore[arg-type]


def test_an_engine_runs_on_the_cpus_that_are_named() -> None:
    last = max(os.sched_getaffinity(0))
    with ThreadPoolExecutor(1) as caller:  # stays on them
        engine = caller.submit(build_engine, EngineSettings(cpu_list=str(last))).result()
        caller.submit(engine.loop.close).result()
    assert (engine.settings["cpu_list"].value, engine.settings["threads"].value) == (str(last), 1)
    with pytest.raises(SettingsError, match="--cpu-list names CPU 1023, but this process may use "):
        build_engine(EngineSettings(cpu_list="1023"))
    with pytest.raises(SettingsError, match=r"^--cpu-list names 1 CPU, one for each thread, but --threads is 2"):
        build_engine(EngineSettings(cpu_list=str(last), threads=2))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_a_model_is_loaded_and_only_then(enabled: bool, tmp_path: Path) -> None:
    seen = []
    (gc.enable if enabled else gc.disable)()
    try:
        engine = build_engine(EngineSettings(threads=1), progress=lambda done, total: seen.append(gc.isenabled()))
        after = gc.isenabled()
        engine.loop.close()
        with pytest.raises(Exception, match="nothing"):
            build_engine(EngineSettings(model=str(tmp_path / "nothing")))
        after_fault = gc.isenabled()
    finally:
        gc.enable()
    assert seen and not any(seen)
    assert (after, after_fault) == (enabled, enabled)


def test_a_cache_that_stays_empty_is_mirrored_nowhere(tmp_path: Path) -> None:
    seen: list[int] = []
    settings = EngineSettings(model=str(write_embedder(tmp_path / "model")), threads=1)
    with pytest.raises(SettingsError, match="an encoder-only model caches nothing"):
        build_engine(settings, progress=lambda done, total: seen.append(done), kv_event_queue=KVEventQueue())
    assert not seen, "weights were loaded first"
