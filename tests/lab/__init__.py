"""Tests of the laboratory, and of the package on its data."""
