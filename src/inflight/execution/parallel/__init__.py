"""One model on several devices of a machine, a process for each: matrices are cut, and partial products are added up
(Shoeybi et al., "Megatron-LM", arXiv 1909.08053). docs/gpu.md describes a step."""
