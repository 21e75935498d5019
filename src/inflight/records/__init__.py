"""Schemas of record and result files, and the readers that check files against them."""
