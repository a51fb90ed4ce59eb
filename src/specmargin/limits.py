"""The largest step that any part handles."""

from typing import Final

MAX_BATCH: Final = 65_536  # sequences
MAX_DEPTH: Final = 64  # draft tokens per sequence
