"""The files of tests that take longest, longest first.

Workers take them before all others: one that came last would keep one core while the others have nothing left. Add
a file that takes ten seconds of a core (`pytest --durations 30` shows them).
"""

from __future__ import annotations

LONG = (
    "execution/test_model.py",
    "server/test_processes.py",
    "test_sameness.py",
    "execution/backends/torch/test_kernels_attention.py",
    "simulate/test_replay.py",
    "execution/backends/torch/test_kernels_sampling.py",
    "core/test_state_machine.py",
    "bench/test_http_client.py",
    "cli/test_bench.py",
    "execution/backends/test_native_attention.py",
    "cli/test_simulate.py",
    "report/test_page.py",
    "execution/drafters/test_draft_model.py",
    "frontend/parsers/test_forced_calls.py",
    "server/test_batches.py",
    "execution/backends/torch/test_kernels_linear.py",
    "core/speculation/test_controller.py",
    "cli/test_plan.py",
    "planning/test_plan.py",
    "server/test_life.py",
    "planning/test_tuning.py",
    "server/test_streams.py",
    "server/ingress/test_connections.py",
    "simulate/test_shared_service.py",
    "server/test_kv_transfer.py",
    "server/test_texts.py",
    "bench/test_client.py",
    "execution/backends/torch/test_kernels_adapters.py",
    "execution/backends/torch/test_kernels_experts.py",
    "server/model_pool/test_server.py",
    "server/test_overload.py",
    "server/preprocessing/test_pool.py",
    "execution/backends/torch/test_kernels_recurrence.py",
    "execution/backends/torch/test_engine.py",
    "server/ingress/test_bodies.py",
    "server/test_shared_jobs.py",
    "models/test_gguf_families.py",
    "execution/test_encoders.py",
    "cli/test_run.py",
    "server/live/test_page.py",
    "core/test_grammar_machine.py",
)
