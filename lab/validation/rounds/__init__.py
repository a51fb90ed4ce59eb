"""Whole rounds and steps with prompts of a real engine, on a real GPU."""
