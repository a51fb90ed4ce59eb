"""What live benchmarks and live tests share: models, measuring, and engines in processes of their own."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
