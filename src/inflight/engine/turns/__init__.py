"""Turns of several engines on the same cores: `rule` says whose it is, `accounts` keep who had what, `table` shares
them between processes, `step_turns` makes an engine's steps wait for theirs.

Knows no models and no requests but for `foreground`, which counts those that somebody waits for. POSIX only.
"""
