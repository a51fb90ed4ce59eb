"""Measures prices on the user's machine: steps of a real engine, kernels on a bare GPU."""
