"""The four stages: text, target, draft, bank. Each leaves a finished folder, and is skipped where that is there."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bank
import numpy as np
import text
import torch
import training
from folders import read_model, write_model
from settings import Clock, RecipeError, Settings, whole_file


def find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RecipeError(f"--device {name}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        # Products that give the same bits every time; must be said before the first one.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Attention's backward pass is not among them; the README says so, PyTorch need not.
        warnings.filterwarnings("ignore", message=".*non-deterministic algorithm.*")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # only slow
    return device


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    out: Path
    settings: Settings
    device: torch.device
    clock: Clock

    def text(self, folders: list[Path] | None) -> None:
        if not (self.out / "text").is_dir():
            text.prepare(folders or text.default_folders(), self.out, self.settings)

    def target(self) -> None:
        if (self.out / "target").is_dir():
            return
        found = self._text()
        model = training.train_target(found.train, self.settings, self.device, self.out, self.clock)
        write_model(model, self.out / "target", found.tokenizer)
        written = read_model(self.out / "target").to(self.device)
        self._note("target", training.held_out(written, found.held_out_by_category, self.settings))

    def draft(self) -> None:
        if (self.out / "draft").is_dir():
            return
        found = self._text()
        target = read_model(self._folder("target"))
        model = training.train_draft(target, found.train, self.settings, self.device, self.out, self.clock)
        write_model(model, self.out / "draft", found.tokenizer)

    def bank(self) -> None:
        if (self.out / "bank").is_dir():
            return
        kept = self.out / "checkpoints" / "rounds.npz"
        target = read_model(self._folder("target")).to(self.device)
        if not kept.is_file():
            draft = read_model(self._folder("draft")).to(self.device)
            requests = bank.read_requests(self.out, self.settings)
            bank.keep_rounds(bank.capture(target, draft, requests, self.settings, self.clock), kept)
        with np.load(kept) as file:
            rounds = {name: file[name] for name in file}
        self._note("bank", bank.summary(rounds, target.shape.experts))
        bank.write_bank(rounds, self.out / "bank", self.settings)

    def metrics(self) -> dict[str, Any]:
        path = self.out / "metrics.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        return found

    def _note(self, stage: str, found: dict[str, Any]) -> None:
        with whole_file(self.out / "metrics.json") as unfinished:
            unfinished.write_text(json.dumps({**self.metrics(), stage: found}, indent=1) + "\n")

    def _text(self) -> text.Text:
        self._folder("text")
        return text.read(self.out)

    def _folder(self, name: str) -> Path:
        folder = self.out / name
        if not folder.is_dir():
            raise RecipeError(f"{folder}: not there yet; run the recipe without --only, or --only {name} first")
        return folder
