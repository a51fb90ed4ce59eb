"""Runs inside a vLLM process that is measured: the probe, its hooks and forced drafts."""
