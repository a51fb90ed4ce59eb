"""Inside a vLLM that is being measured: the probe, its hooks, and drafts that are forced."""
