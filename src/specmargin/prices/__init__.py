"""Seconds of a step, by component. Never imports routing or acceptance: distinct experts come in as numbers."""
