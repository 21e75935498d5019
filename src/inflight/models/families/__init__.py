"""One file a family, or a few that differ by a field: what stands in its config.json and what that means."""
