"""The page: one HTML file with everything in it. Needs no network; without a script, charts are tables."""

from inflight.report.page.page import render
from inflight.report.page.templating import figures_alone

__all__ = ["figures_alone", "render"]
