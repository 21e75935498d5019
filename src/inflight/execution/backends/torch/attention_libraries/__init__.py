"""Attention by other projects' kernels, where they are installed: `--attention-backend`. Our own are the default.

`library` puts one in the place of the operation `attention`, for the passes that it takes; `flash_attn` and
`flashinfer` are the two there are. Which models they fit is checked before anything is loaded
(`execution.attention_backends`). Tests call them with modules of the same signatures that check what their
documentation demands; neither has run on a GPU.
"""
