"""The files of tests that take longest, longest first.

Workers take them before all others: one that came last would keep one core while the others have nothing left. Whoever
makes a file that takes ten seconds of a core adds it (`pytest --durations 30` shows them).
"""

from __future__ import annotations

LONG = (
    "server/test_processes.py",
    "execution/test_decoder.py",
    "planning/test_plan.py",
    "cli/test_plan.py",
    "cli/test_bench.py",
    "test_sameness.py",
    "cli/test_tune.py",
    "attack/test_attacks.py",
    "test_recurrent_sameness.py",
    "bench/test_http_client.py",
    "server/test_openapi.py",
    "core/test_state_machine.py",
    "core/queueing/test_floor.py",
    "execution/checkpoints/test_hostile_files.py",
    "report/test_page.py",
    "cli/test_run.py",
    "server/ingress/test_connections.py",
    "text/test_control.py",
    "execution/backends/test_native_attention.py",
    "execution/backends/test_native_blocks.py",
    "simulate/test_replay.py",
    "execution/test_depth.py",
    "execution/backends/torch/test_families.py",
    "execution/backends/torch/test_engine.py",
    "execution/parallel/test_executor.py",
    "server/batch/test_crashes.py",
    "models/test_families.py",
    "execution/transformers/test_transformers.py",
    "cli/test_simulate.py",
    "bench/test_client.py",
    "execution/test_drafts.py",
    "execution/drafters/test_heads_in_steps.py",
    "execution/drafters/test_heads.py",
    "cli/test_run_lines.py",
    "text/test_detokenizer.py",
    "execution/test_scoring.py",
    "core/kv/test_transfers.py",
    "execution/backends/test_native_latent.py",
    "text/test_sandbox.py",
    "models/test_gguf_families.py",
    "execution/backends/test_native_experts.py",
)
