"""A dataset that is made in no time."""

from pathlib import Path

from factformer.data.generate.run import generate


def generate_small_flow(folder: Path, **options: object) -> Path:
    """Kolmogorov flow on the coarsest grid that holds its force."""
    generate("kolmogorov_flow", folder, preset="tiny", resolution=16, simulation_resolution=32, **options)
    return folder
