"""Every operation of `torch.operations` as Triton kernels: static grids and shapes, so that graphs can replay them."""
