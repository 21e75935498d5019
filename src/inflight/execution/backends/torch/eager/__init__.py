"""Every operation of `torch.operations` in PyTorch's own: readable, runs on any device, and what kernels are held to."""
