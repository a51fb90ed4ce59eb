"""Shared by live benchmarks and live tests: models, measuring, and engines in separate processes."""
