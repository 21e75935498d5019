"""/v1/responses: a conversation as items, and its answer as items and events."""
