"""Trace files as people have them, each format turned into entries by a loader of its own.

`detect.load` reads any of them. Loaders know columns and units; what is dropped they say, with the first line it was.
"""
