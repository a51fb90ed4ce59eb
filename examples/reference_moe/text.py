"""From folders of files to a tokenizer, training tokens, and prompts that training never saw."""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from settings import END_OF_TEXT, PAD, Progress, RecipeError, Settings, whole_file, whole_folder
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

Tokens = npt.NDArray[np.uint16]

ENDINGS = {
    "python": (".py",),
    "cpp": (".h", ".hpp", ".hh", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".ipp", ".inl"),
    "prose": (".rst", ".md", ".txt"),
}
_LEAST_CHARACTERS, _MOST_BYTES = 800, 400_000  # shorter files say little, longer ones are mostly tables
_HELD_OUT_PART = 0.2  # of a category's files, at most
_TOKENIZER_CHARACTERS = 12_000_000
_LEAST_TOKENS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What later stages read."""

    tokenizer: Path
    train: Tokens
    held_out_by_category: dict[str, Tokens]


def default_folders() -> list[Path]:
    """Source code and documentation that any machine with Python has."""
    paths = sysconfig.get_paths()
    own = [Path(paths[name]) for name in ("stdlib", "purelib", "include")]
    return [folder for folder in (*own, Path("/usr/include"), Path("/usr/share/doc")) if folder.is_dir()]


def prepare(folders: Sequence[Path], out: Path, settings: Settings) -> None:
    """Write `text/` (tokenizer and tokens) and `prompts.json`."""
    progress = Progress("text")
    documents = {kind: _read(paths, settings) for kind, paths in _found(folders, settings.seed).items()}
    documents = {kind: texts for kind, texts in documents.items() if texts}
    if not documents:
        known = ", ".join(ending for endings in ENDINGS.values() for ending in endings)
        raise RecipeError(f"no text in {', '.join(map(str, folders))}: files must end in {known}; give --text DIR")
    progress.show(0.3, "read")
    kept = {kind: _held_out(texts, settings) for kind, texts in documents.items()}
    train = [text for kind, texts in documents.items() for text in texts[len(kept[kind]) :]]
    order = np.random.default_rng([settings.seed, 1]).permutation(len(train))
    train = [train[i] for i in order]
    tokenizer = _tokenizer(train, settings.target.vocabulary)
    progress.show(0.6, "tokenizer made")
    tokens = _encoded(tokenizer, train)
    if tokens.size < _LEAST_TOKENS:
        raise RecipeError(
            f"only {tokens.size:,} tokens of text: give more with --text DIR (at least {_LEAST_TOKENS:,})"
        )
    with whole_file(out / "prompts.json") as file:
        file.write_text(json.dumps(_prompts(tokenizer, kept, settings), ensure_ascii=False, indent=1) + "\n")
    with whole_folder(out / "text") as folder:
        tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "train.npy", tokens)
        held_out = {kind: _encoded(tokenizer, texts) for kind, texts in kept.items() if texts}
        np.savez(folder / "held_out.npz", **held_out)  # type: ignore[arg-type]  # named arrays
    sizes = ", ".join(f"{kind} {sum(map(len, texts)) / 1e6:.1f} MB" for kind, texts in documents.items())
    progress.done(f"{tokens.size / 1e6:.2f} M tokens of {sizes}; {sum(map(len, kept.values()))} files held out")


def read(out: Path) -> Text:
    folder = out / "text"
    with np.load(folder / "held_out.npz") as held_out:
        by_category = {str(kind): held_out[kind] for kind in held_out}
    return Text(
        tokenizer=folder / "tokenizer.json", train=np.load(folder / "train.npy"), held_out_by_category=by_category
    )


def _found(folders: Sequence[Path], seed: int) -> dict[str, list[Path]]:
    """Paths by category, in an order that depends on their names and the seed alone."""
    found: dict[str, set[Path]] = {kind: set() for kind in ENDINGS}
    for folder in folders:
        for path in _files(folder):
            for kind, endings in ENDINGS.items():
                if path.name.lower().endswith(endings):
                    found[kind].add(path)
    generator = np.random.default_rng([seed, 0])
    ordered = {kind: sorted(paths) for kind, paths in found.items()}
    return {kind: [paths[i] for i in generator.permutation(len(paths))] for kind, paths in ordered.items()}


def _files(folder: Path) -> Iterator[Path]:
    for base, _, names in os.walk(folder):
        yield from (Path(base, name) for name in names)


def _read(paths: Sequence[Path], settings: Settings) -> list[str]:
    """Whole files, no two alike, until there is enough."""
    texts, seen, characters = [], set(), 0
    for path in paths:
        try:
            if path.stat().st_size > _MOST_BYTES:
                continue
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # not ours to mend
        digest = hashlib.sha1(text.encode()).digest()
        if len(text) < _LEAST_CHARACTERS or digest in seen:
            continue
        seen.add(digest)
        texts.append(text)
        characters += len(text)
        if characters > settings.megabytes * 1e6:
            break
    return texts


def _held_out(texts: list[str], settings: Settings) -> list[str]:
    """The first files, which training does not see: the order is random already."""
    most = int(_HELD_OUT_PART * len(texts)) or min(len(texts) - 1, 1)
    return texts[: min(settings.prompts, most)]


def _tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Bytes in pairs, as Qwen's."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sizes = np.cumsum([len(text) for text in texts])
    tokenizer.train_from_iterator(texts[: int(np.searchsorted(sizes, _TOKENIZER_CHARACTERS)) + 1], trainer)
    return tokenizer


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """One after another, each ended."""
    ids = (np.array([*encoding.ids, 0], dtype=np.uint16) for encoding in tokenizer.encode_batch(list(texts)))
    return np.concatenate([*ids, np.zeros(0, dtype=np.uint16)])


def _prompts(tokenizer: Tokenizer, kept: dict[str, list[str]], settings: Settings) -> dict[str, list[str]]:
    """The beginnings of the files that were held out."""
    return {
        kind: [_cut(tokenizer, text, settings.prompt_tokens) for text in texts] for kind, texts in kept.items() if texts
    }


def _cut(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    ids = tokenizer.encode(text).ids[:tokens]
    return str(tokenizer.decode(ids)).rstrip("\ufffd")  # a character cut in two
