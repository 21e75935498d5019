"""Runs that others published, beside what is predicted for them."""
