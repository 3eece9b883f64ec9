"""What it is worth to tell a small network of what acts on a trajectory."""

import torch

from factformer import Grid, fit, rollout


def error_when_told(
    part: str,
    known: dict[str, torch.Tensor],
    frames: torch.Tensor,
    grid: Grid,
    num_training: int,
    updates: int,
    depth: int,
    frame_dt: float | None = None,
) -> float:
    """Relative error of four frames of the last trajectories, after training on the first ones."""

    def of(rows: slice) -> dict[str, dict[str, torch.Tensor] | None]:
        return {part: {name: values[rows] for name, values in known.items()} or None}

    first, last = slice(num_training), slice(num_training, None)
    fitted = fit(
        frames[first],
        grid=grid,
        frame_dt=frame_dt,
        fields=["u"],
        **of(first),
        num_context_frames=1,
        updates=updates,
        progress=False,
        settings={"model.dim": 16, "model.depth": depth, "model.heads": 2, "model.head_dim": 8, "model.kernel_dim": 8},
    ).eval()
    with torch.no_grad():
        found = torch.stack(list(rollout(fitted, frames[last, :1], 4, **of(last))), dim=1)
    return float((found - frames[last, 1:5]).norm() / frames[last, 1:5].norm())
