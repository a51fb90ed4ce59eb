"""Predicted against measured: what others measured, beside the tools people would otherwise use."""
