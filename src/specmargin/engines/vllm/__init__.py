"""Inside a running vLLM. Nothing outside this package imports vLLM."""
