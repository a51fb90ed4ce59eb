"""Which vLLM the probe knows the insides of."""

from __future__ import annotations

OLDEST, NEWEST = (0, 26), (0, 32)


def check_version(version: str) -> str:
    """What is wrong with this vLLM, or nothing."""
    try:
        found = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return f"vLLM {version} has a version that is not understood"
    if not OLDEST <= found <= NEWEST:
        return (
            f"vLLM {version} is outside of {_dotted(OLDEST)} to {_dotted(NEWEST)}, whose insides this probe knows; "
            f"install one of those to measure it"
        )
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
