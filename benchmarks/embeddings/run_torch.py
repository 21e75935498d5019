"""Runner of PyTorch, as sentence-transformers has it compute: the modules of transformers, a mean of the tokens, length
1.

Runs in an environment that has torch and transformers.
"""

from __future__ import annotations

import numpy as np

from benchmarks.embeddings.runner import Job, Padded, serve


def make(job: Job) -> Padded:
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    dtype = torch.bfloat16 if job.precision == "bfloat16" else torch.float32
    model = transformers.AutoModel.from_pretrained(job.model, dtype=dtype, add_pooling_layer=False).eval()

    @torch.inference_mode()
    def compute(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        weights = torch.from_numpy(mask)
        hidden = model(torch.from_numpy(ids), attention_mask=weights).last_hidden_state
        shares = weights[..., None].to(hidden.dtype)
        mean = (hidden * shares).sum(1) / shares.sum(1)
        return np.asarray(torch.nn.functional.normalize(mean.float(), dim=1).numpy())

    return Padded(f"PyTorch {torch.__version__}, transformers {transformers.__version__}", compute)


if __name__ == "__main__":
    serve(make)
