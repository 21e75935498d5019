"""Launch functions of operations on a GPU, by kind: Triton kernels with static grids and shapes, so that graphs can
replay them; `plain` has those that are PyTorch's own.

The function of an operation's name takes a `DevicePass` and the operation's arguments, with activations as tensors.
"""
