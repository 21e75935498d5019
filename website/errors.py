"""The error that ends the build of the site; its message names the page."""

from __future__ import annotations


class WebsiteError(ValueError):
    """A page cannot stand on the site as it is written."""
