"""The command line: a command per verb, and what it says of invalid input."""

import gc

# Starting a command makes many objects and frees few: looking for cycles as often as usual takes a tenth of its time.
gc.set_threshold(100_000, 20, 20)
