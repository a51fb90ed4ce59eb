"""Prices of llama.cpp's own kernels, by backend: what its source runs, with constants from published benchmarks."""
