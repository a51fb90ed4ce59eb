"""Policies: how deep to draft and how much to verify, step by step. The simulator and engines run the same ones."""
