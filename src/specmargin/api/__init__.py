"""The verbs in Python: `specmargin.plan(...)`, `price`, `coverage`, `duel`, `simulate` and `sweep`."""
