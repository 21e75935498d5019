"""User settings: read, checked and resolved once, each value in force with its reason."""
