"""The page: one HTML file that needs no network; without a script, its charts are tables."""

from inflight.report.page.page import figures_alone, render

__all__ = ["figures_alone", "render"]
