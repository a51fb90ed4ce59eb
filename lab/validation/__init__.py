"""Predictions against measurements, on data that no fit has seen."""
