"""The controller inside a serving engine. Only `live.vllm` imports an engine."""
