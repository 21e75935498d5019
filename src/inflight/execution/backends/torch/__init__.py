"""The backend over PyTorch: GPUs, with Triton kernels of our own; and the CPU, where it is tested.

docs/gpu.md has how a step runs. Importing its modules but `device` imports torch, which is the extra `gpu`.
"""
