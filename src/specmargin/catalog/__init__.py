"""Presets with their sources: models, devices, drafters, acceptance curves."""
