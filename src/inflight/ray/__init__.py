"""Serve replicas under Ray: HTTP in this process, engines in the replicas of a Ray Serve deployment (extra `ray`).

    here:  HTTP, tenants, batch jobs → ReplicatedEngine (`replicated_engine`) → Ray's handle → RoutedRequestRouter
           (`request_router`), which calls our router (`routing_board`, `inflight.routing`)
    there: EngineReplica (`engine_replica`): an engine that receives the messages of `engine.remote`
    between them: a call for each request, and one stream of events for each replica (`replica_links` here,
           `replica_outbox` there)

Ray starts, watches, replaces, scales and drains replicas. Tokens have the same bits as from a local engine, since a
request's seed and settings are sent with it. A pool of prefill replicas may compute the prompts (`prefilling`).
"""

import os

# Ray reads these when it is imported: no log lines of its own beside the server's, no failure report on a signal, no
# second Ray started after the first has ended.
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Calls and streams use one event loop on either side: no code here blocks it, and switching threads would cost time.
# Replicas of a Ray that this process starts inherit these variables.
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
os.environ.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
