"""Shared by live benchmarks and live tests: models, measuring, and engines in separate processes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
