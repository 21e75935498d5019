"""What `inflight demo` shows: a small engine under two lanes of traffic, and the words for what happens in it.

traffic ──HTTP──▶ server (a process of its own) ──sees──▶ narrator ──sentences──▶ the terminal
"""
