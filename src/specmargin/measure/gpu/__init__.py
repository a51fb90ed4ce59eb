"""Times kernels on a bare GPU, one at a time (PyTorch and Triton)."""
