"""The backend on a GPU: are its kernels right, how near is it to what the device allows, and what does serving cost.

    python -m benchmarks.gpu --part all [--models llama-3.1-8b qwen3-30b-a3b] [--write]

For a bare machine with a source tree (PYTHONPATH=src): torch 2.11 and triton 3.6 or later and numpy are needed, and
besides them only msgspec, a wheel without dependencies that has to be brought along where it is missing. The compiled
module of the CPU's kernels is not. Weights are random. `--device cpu` runs all of it on a tiny model, with kernels in
Triton's interpreter: that shows that it runs, and measures nothing.
"""
