"""Kernels of a bare GPU, timed one at a time (PyTorch and Triton, the extra `gpu`)."""
