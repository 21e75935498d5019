"""The one schema of step and request records. Standard library only; anyone may import it."""
