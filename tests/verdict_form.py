"""What a verdict must look like: short lines, the answer first, one caveat at most."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from specmargin.decisions.advice import Advice

WIDTH, MOST_LINES = 80, 4
_NUMBER = r"\d+\.\d\d"
_LOAD = r"(batch [\d,]+|[\d.]+ requests/s|concurrency [\d,]+)"
_RANGE = rf"{_NUMBER} to {_NUMBER}× \(80% range\), estimate {_NUMBER}×\."
_GAIN = rf"{_NUMBER}× at {_LOAD} \(80% range {_NUMBER} to {_NUMBER}\)"
#: How the first line begins, with factor, range and load, by advice.
ANSWERS = {
    Advice.SPECULATE: rf"Yes: {_GAIN}",
    Advice.UP_TO_BATCH: rf"(Only|Yes,) up to batch [\d,]+: {_GAIN}",
    Advice.UNCERTAIN: rf"Uncertain(?: at {_LOAD}(?: with [\w-]+)?: {_RANGE}|: the best is {_GAIN})",
    Advice.DO_NOT: rf"No: (the best is |no single depth pays at all these batches; the best alone is )?{_GAIN}"
    rf"|No: (at {_LOAD} the queue grows|overloaded at|[\d.]+ ms per token misses|these flags draft nothing at batch)",
    Advice.UNSUPPORTED: rf"Not yet: {_GAIN}[^,]*, but ",
    Advice.NONE_FITS: r"Nothing fits: |No: batch [\d,]+ does not fit; ",
    Advice.SLOWER_FIRST_TOKEN: rf"Only if a TTFT of [\d.]+ m?s will do: {_NUMBER}× at {_LOAD}",
    Advice.MISSES_TARGET: rf"Not enough: [\d.]+ ms per token, target [\d.]+ ms; {_NUMBER}× at {_LOAD}",
    Advice.OVERLOADED: rf"Overloaded at {_LOAD}: ",
}
#: A verdict has one of these at most.
_CAVEATS = (
    *(
        r"fits?, not",
        r"^Prefill takes",
        r"it is clearly faster there",
        r"^The gain is clear",
        r"^It loses",
        r"^Above batch",
        r"^Nowhere a clear gain; above",
        r"^Drafting is off",
    ),
    r"it no longer pays",
)
RANGE = "|".join(f"(?:{ANSWERS[each]})" for each in (Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN))


def form_faults(text: str, advice: Advice) -> Iterator[str]:
    lines = text.splitlines()
    shown = [part for line in lines for part in textwrap.wrap(line, WIDTH)]
    if len(shown) > MOST_LINES:
        yield f"{len(shown)} lines: {text}"
    if not re.match(ANSWERS[advice], lines[0]):
        yield f"the first line does not answer {advice!r}: {text}"
    if re.search(r"\([^)]*\(|\[|…|\.\.\.", text):
        yield f"a parenthesis in a parenthesis, or an ellipsis: {text}"
    if sum(bool(re.search(caveat, line)) for caveat in _CAVEATS for line in lines) > 1:
        yield f"more than one caveat: {text}"
    if any(not line.endswith(".") or "None" in line or "  " in line for line in lines):
        yield f"a line that is no sentence: {text}"
