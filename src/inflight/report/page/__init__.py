"""The page: one HTML file with everything in it, that needs no script and no network."""

from inflight.report.page.page import render

__all__ = ["render"]
