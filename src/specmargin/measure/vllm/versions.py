"""The vLLM versions that the probe supports: it depends on internals. Kept apart from it: this imports no torch."""

from __future__ import annotations

OLDEST, NEWEST = (0, 26), (0, 32)


def check_version(version: str) -> str:
    """An error message if the probe does not support this version, else an empty string."""
    try:
        release = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return f"vLLM {version} is not a version of the form X.Y"
    if not OLDEST <= release <= NEWEST:
        return (
            f"vLLM {version} is not supported by `measure vllm`, which depends on vLLM internals; "
            f"install a version from {_dotted(OLDEST)} to {_dotted(NEWEST)}"
        )
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
