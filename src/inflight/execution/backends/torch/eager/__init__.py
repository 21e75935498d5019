"""Every operation of `torch.operations` in PyTorch's own: readable, runs anywhere, and what kernels are held to."""
