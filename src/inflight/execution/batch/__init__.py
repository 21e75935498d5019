"""The input batch: state of all running sequences, by request slot, from step to step (docs/engine-internals.md)."""
