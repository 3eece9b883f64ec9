"""The training loop: one update after the other, validation, roll-back and the end of a run."""
