"""The server as an application of Ray Serve's, by the path that deployments name."""

import inflight.ray  # noqa: F401  sets what Ray reads when it is imported
