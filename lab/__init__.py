"""What only this repository needs. It is never installed; run it from the repository's root: `python -m lab.campaign`.

campaign         equal-cost runs of many models on a GPU that is there for a limited time
pages            writes the pages of results from the files under results/
analyses         single questions about surrogates and data
kernel_timings   time, errors and tiles of GPU kernels, stage by stage
check_pins       the offline check of constraints.txt
seeded_losses    losses of short trainings, to compare before and after a redesign
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""
