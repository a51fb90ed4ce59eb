"""Inside a real vLLM. Import `plugin`, `scheduler` or `worker` only where vLLM is installed."""
