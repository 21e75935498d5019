"""Answers in the shapes of each endpoint, whole or in frames: one file an endpoint."""
