"""Offline studies of policies: the look-ahead on a sample of rounds, replays of a bank, and the ladder of policies."""
