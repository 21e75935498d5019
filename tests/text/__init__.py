"""Tests of inflight.text."""
