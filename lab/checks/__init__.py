"""Measurements on a GPU that hold what the documentation says, each one command with ``--out`` and ``--tiny``."""
