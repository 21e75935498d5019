"""Replicas under Ray: HTTP here, engines in the replicas of a Ray Serve deployment (extra `ray`).

    here:  HTTP, tenants, batch jobs → ReplicatedEngine (`replicated_engine`) → Ray's handle → RoutedRequestRouter
           (`request_router`), which asks our router (`routing_board`, `inflight.routing`)
    there: EngineReplica (`engine_replica`): an engine, asked by the messages of `engine.remote`
    between them: a call for each request, and one stream a replica for what happens to all of them (`replica_links`
           here, `replica_outbox` there)

Ray starts, watches, replaces, scales and drains replicas. What is computed there has the same bits as anywhere, since a
request's seed and settings go with it. A replica may have prompts computed by those of another pool (`prefilling`).
"""

import os

# Ray reads these when it is imported. Its own lines say what the server's log says, a signal is no failure, and nothing
# starts a second Ray where the first is gone.
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Calls and streams go through one event loop on either side, not from thread to thread: nothing here keeps one busy.
# Replicas of a Ray that this process starts inherit it.
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
os.environ.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
