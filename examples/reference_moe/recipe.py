"""Train a small mixture of experts and its drafter from scratch on local text, and capture a bank from them.

    python recipe.py --out reference-moe                 # about ten minutes on one GPU
    python recipe.py --out reference-moe --minutes 4     # as good as four minutes allow
    python recipe.py --out tiny --tiny --device cpu      # half a minute on a laptop: to see it work

Every stage is kept: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from settings import FULL, TINY, Clock, RecipeError, Settings, whole_file

STAGES = ("text", "target", "draft", "bank")


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        run(given)
    except RecipeError as error:
        print(f"recipe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recipe: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


def run(given: argparse.Namespace) -> None:
    clock, settings = Clock(given.minutes), _settings(given)
    foreign = given.only == "bank" and not (given.out / "recipe.json").is_file()  # models that came from elsewhere
    folders = given.text if foreign else _same_text(given.out, settings, given.text)
    try:
        import stages  # noqa: PLC0415 (slow, and may be missing)
    except ImportError as error:
        raise RecipeError(f"{error.name} is missing: pip install torch tokenizers safetensors polars") from None
    work = stages.Work(out=given.out, settings=settings, device=stages.find_device(given.device), clock=clock)
    for stage in STAGES if given.only is None else (given.only,):
        work.text(folders) if stage == "text" else getattr(work, stage)()
    print(json.dumps(work.metrics(), indent=1))


def _settings(given: argparse.Namespace) -> Settings:
    """The sizes, with what was given in place of them."""
    names = ("seed", "megabytes", "target_steps", "draft_steps", "batch", "learning_rate", "prompts", "new_tokens")
    said = {name: value for name in names if (value := getattr(given, name)) is not None}
    for name, value in said.items():
        if value < 0 or (value == 0 and name != "seed"):
            raise RecipeError(f"--{name.replace('_', '-')} {value}: must be above zero")
    if given.minutes is not None and given.minutes <= 0:
        raise RecipeError(f"--minutes {given.minutes}: must be above zero")
    found = replace(TINY if given.tiny else FULL, **said)
    longest = found.prompt_tokens + found.new_tokens + 2 * (found.depth + 1)
    if longest > found.target.max_positions:
        raise RecipeError(
            f"--new-tokens {found.new_tokens}: at most {found.target.max_positions - longest + found.new_tokens}"
        )
    return found


def _same_text(out: Path, settings: Settings, text: list[Path] | None) -> list[Path] | None:
    """One folder, one run: what it was begun with must not change under its checkpoints. Gives its text."""
    path, sizes = out / "recipe.json", asdict(settings)
    if not path.is_file():
        for folder in text or ():
            if not folder.is_dir():
                raise RecipeError(f"--text {folder}: no such folder")
        now = {"settings": sizes, "text": None if text is None else [str(folder) for folder in text]}
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps(now, indent=1) + "\n")
        return text
    try:
        before = json.loads(path.read_text())
        changed = [name for name, value in sizes.items() if before["settings"].get(name) != value]
        began = None if before["text"] is None else [Path(folder) for folder in before["text"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecipeError(f"{path}: not written by this recipe; choose another --out") from None
    if changed or (text is not None and text != began):
        what = changed[0].replace("_", "-") if changed else "text"
        raise RecipeError(f"{out} was begun with another {what}: choose another --out")
    return began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="target/, draft/, bank/, prompts.json")
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders of source code and documentation; default: this Python's library and packages, /usr/include, "
        "/usr/share/doc",
    )
    parser.add_argument("--minutes", type=float, help="end within this time, with shorter training if need be")
    parser.add_argument("--only", choices=STAGES, help="one stage; `bank` also of a target/, draft/ from elsewhere")
    parser.add_argument("--tiny", action="store_true", help="everything very small, for tests")
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cuda, cpu")
    for name, kind, what in (
        ("seed", int, "of everything that is drawn"),
        ("megabytes", float, "text read, a category"),
        ("target-steps", int, "training steps of the target"),
        ("draft-steps", int, "training steps of the drafter"),
        ("batch", int, "sequences a training step: fewer if the GPU's memory is short"),
        ("learning-rate", float, "at its peak"),
        ("prompts", int, "requests of the bank, a category"),
        ("new-tokens", int, "that each request generates, at least"),
    ):
        default = getattr(FULL, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=kind, help=f"{what} (default {default:g})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
