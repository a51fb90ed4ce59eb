"""Data-parallel ranks in lockstep behind a router, each with its own batch."""
