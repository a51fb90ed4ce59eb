"""Shell completion: verbs, options, and the names of models, GPUs, engines and drafters.

    eval "$(specmargin --completion bash)"

The shell calls `specmargin` again with the words typed so far; only the verb among them is imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import typer

from specmargin.errors import InputError
from specmargin.verbs import find_verb, split_verb, verb_names

VARIABLE = "_SPECMARGIN_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = {
    "bash": """_specmargin_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %s=words specmargin))
}
complete -o default -F _specmargin_completion specmargin""",
    "zsh": """#compdef specmargin
_specmargin_completion() {
    local -a found
    found=("${(@f)$(COMP_WORDS="${(pj:\\n:)words}" COMP_CWORD=$((CURRENT-1)) %s=words specmargin)}")
    compadd -a found
    _files
}
compdef _specmargin_completion specmargin""",
    "fish": """complete -c specmargin -a '(env COMP_WORDS=(string join \\n -- (commandline -opc) (commandline -ct)) \\
    COMP_CWORD=(count (commandline -opc)) %s=words specmargin)'""",
}


def script(shell: str) -> str:
    """What the shell evaluates to complete `specmargin`."""
    if shell not in _SCRIPTS:
        raise InputError(f"--completion {shell}: known shells are {', '.join(SHELLS)}")
    return _SCRIPTS[shell] % VARIABLE


def complete(verbs: Mapping[str, str]) -> None:
    """Print what may stand in place of the last word, one per line."""
    words = os.environ.get("COMP_WORDS", "").replace("\n", " ").split(" ")
    current = int(os.environ.get("COMP_CWORD") or len(words) - 1)
    typed, last = words[1:current], words[current] if current < len(words) else ""
    print("\n".join(name for name in _candidates(verbs, typed) if name.startswith(last)))


def _candidates(verbs: Mapping[str, str], typed: list[str]) -> list[str]:
    if not typed:
        return [*verbs, "--help", "--version", "--completion"]
    if typed[0] not in verbs:
        return []
    name, after = split_verb(typed)
    parts = [known.split()[1] for known in verb_names() if known.startswith(f"{typed[0]} ")]
    if parts and not name:
        return [*parts, "--help"]
    if typed[-1] in _NAMES:
        return _NAMES[typed[-1]]()
    command = _command(name or typed[0])
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    takes_model = any(parameter.name == "model" for parameter in command.params)
    return (_models() if takes_model and not after else []) + [*options, "--help"]


def _command(name: str) -> Any:
    if name in verb_names():
        from specmargin.cli.verbs import command

        return typer.main.get_command(command(find_verb(name)))
    return typer.main.get_command(importlib.import_module(f"specmargin.cli.{name}").app)


def _models() -> list[str]:
    from specmargin.catalog.lookup import model_names

    return list(model_names())


def _gpus() -> list[str]:
    from specmargin.catalog.lookup import device_names

    return list(device_names())


def _engines() -> list[str]:
    from specmargin.modes import ENGINES

    return list(ENGINES)


def _drafters() -> list[str]:
    from specmargin.modes import DRAFTERS

    return [*DRAFTERS, "all"]


_NAMES: dict[str, Callable[[], list[str]]] = {
    "--gpu": _gpus,
    "--model": _models,
    "--engine": _engines,
    "--drafter": _drafters,
    "--parallel": lambda: ["tp", "ep", "dp-ep"],
    "--prices": lambda: ["datasheet", "laws", "scaled", "tables"],
}
