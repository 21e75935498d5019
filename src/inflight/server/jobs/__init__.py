"""Batch jobs: files of requests that are answered in the background, and survive the death of the process."""
