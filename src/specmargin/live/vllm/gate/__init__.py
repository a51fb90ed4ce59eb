"""The gate inside vLLM's worker: vLLM's adaptive verification with Specmargin's prices, calibration and ranking."""
