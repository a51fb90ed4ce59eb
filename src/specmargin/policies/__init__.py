"""Policies that decide every step: how deep the batch drafts, and how much of each draft is verified."""
