"""The backend in numpy: slow, readable, and the definition of what is right.

Knows the same contract as the kernels (`protocol`) and rounds to bf16 at the points that it names: activations, keys,
values and weights are held in bf16, everything between is float32. Two more points where the fast kernels round, so
that both stay comparable: attention's probabilities are rounded to `act` before they meet the values (their sum is
not), and nothing else. Over int8 keys and values, where the kernels round to 16 bits, it rounds neither queries nor
probabilities.

Batch invariance is had by brute force: every token, query and sampled row is computed alone, in a call whose shapes
depend on itself only.

How to read it, from the formulas up:

- formulas over float32 arrays, which know neither passes nor formats: `functions`, `norms`, `rotation`, `attention`,
  `recurrence`, `routing`, `sampling`; and those that round on their way: `products`, `experts`;
- what is held between passes: `act` (where float32 is rounded), `weights` and `packing`, `kv_cache`, `states`,
  `activation`;
- operations of a pass, by kind, as the kernels have them in files of the same names: `pass_rows`, `pass_products`,
  `pass_attention`, `pass_states`. They read activations, apply formulas, round, and write;
- `forward_pass` composes these, and `backend` makes all of it.
"""

from __future__ import annotations

from inflight.execution.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
