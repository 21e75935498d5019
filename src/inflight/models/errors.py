"""The one error of model files and what is made of them: a model that cannot be described, or not be served as given.

Every message is a sentence for the person at the terminal: the cause, the number or name that caused it, and the next
step.
"""

from __future__ import annotations


class ModelError(ValueError):
    """A model folder, checkpoint, configuration or memory setting that cannot be used; the message says why."""
