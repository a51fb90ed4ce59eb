"""Predictions against published measurements, and against those of AIConfigurator."""
