"""What keeps the site from being put together, in a sentence that names the page."""

from __future__ import annotations


class WebsiteError(ValueError):
    """A page cannot stand on the site as it is written."""
