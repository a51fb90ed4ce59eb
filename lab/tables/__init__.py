"""Rows of the public kernel tables that only fits and validation read."""
