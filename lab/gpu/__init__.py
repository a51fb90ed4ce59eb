"""Benchmarks that need a GPU and a real vLLM."""
