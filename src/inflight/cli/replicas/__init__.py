"""`inflight serve --replicas`: HTTP here, engines in the replicas of a Ray Serve deployment (extra `inflight[ray]`).

    here:  HTTP, tenants, batch jobs → ReplicatedEngine (`replicated_engine`) → Ray's handle → RoutedRequestRouter
           (`request_router`), which asks our router (`routing_board`, `inflight.routing`)
    there: EngineReplica (`engine_replica`): an engine, asked by the messages of `engine.remote`

Ray starts, watches, replaces, scales and drains replicas. A request goes to one as a stream of Ray's; what is computed
there has the same bits as anywhere, since its seed and settings go with it.
"""

import os

# Ray reads these when it is imported. Its own lines say what the server's log says, a signal is no failure, and nothing
# starts a second Ray where the first is gone.
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
