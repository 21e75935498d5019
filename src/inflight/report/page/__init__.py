"""The page: one HTML file that needs no network; without a script, its charts are tables."""

from inflight.report.page.page import render
from inflight.report.page.templating import figures_alone

__all__ = ["figures_alone", "render"]
