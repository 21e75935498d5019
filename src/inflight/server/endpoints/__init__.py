"""Routes: which path does what. One file for each kind of thing that is asked."""
