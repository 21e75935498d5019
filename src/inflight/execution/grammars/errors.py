"""What is wrong with a grammar, in words. Knows nothing else."""


class GrammarError(ValueError):
    """A grammar cannot be used; the sentence, without its subject, says why."""
