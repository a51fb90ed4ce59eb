"""Prices from the user's own machine: steps of a real engine, kernels of a bare GPU."""
