"""The names in a run folder: whoever reads or writes one of them takes the name from here."""

from __future__ import annotations

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"
BUNDLE = "bundle"
LOCK = ".lock"

EVALUATION = "evaluation.json"
ROLLOUTS = "rollouts.npz"
SOLVER = "solver.json"
