"""The largest step that any part handles, and the share of a prompt that another instance can compute."""

from typing import Final

MAX_BATCH: Final = 65_536  # sequences
MAX_DEPTH: Final = 64  # draft tokens per sequence
ALL_BUT_LAST: Final = 1.0 - 1e-9  # of a prompt whose KV arrives, as a share that is rounded down to whole tokens
