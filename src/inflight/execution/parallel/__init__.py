"""One model on several devices of a machine, a process for each: matrices are cut, and what the parts yield is added up
(Shoeybi et al., "Megatron-LM", arXiv 1909.08053). docs/gpu.md has how a step runs there.

`shards` and `sharded` know what of a model is whose, `partial_sums` which products are parts of a sum, `ranks` how they
become one; `messages`, `worker`, `workers` and `executor` are the processes and what they say to each other.
"""
