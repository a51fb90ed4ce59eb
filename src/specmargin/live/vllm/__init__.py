"""The vLLM plug-in. Import `plugin`, `scheduler` or `worker` only where vLLM is installed."""
