"""Reports on runs: records and observations as figures, a diagnosis, pictures, text, JSON and a page."""
