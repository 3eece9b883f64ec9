"""The section of the research log on one-dimensional problems, from ``results/cpu/one_axis.json``."""

from __future__ import annotations

from collections import defaultdict

from lab.pages.findings import read_measured

NAMES = {
    "before": "`factformer_plus` with the sizes of two dimensions",
    "small": "4 heads of 32 channels, kernel dimension 32, local kernel 9, no Fourier features",
    "small, 64 channels": "the same with 64 channels: the default now",
    "ffno": "`ffno`",
    "dilated_resnet": "`dilated_resnet`",
}


def one_axis() -> list[str]:
    """What `fit` reaches on one axis at equal updates and at equal processor time."""
    result = read_measured("cpu/one_axis.json")
    runs = defaultdict(list)
    for row in result["rows"]:
        runs[row["variant"], row["equal"]].append(row)
    updates = next(row["updates"] for row in result["rows"] if row["equal"] == "updates")
    lines = [
        "## One dimension",
        "",
        f"Kuramoto-Sivashinsky on {result['data']['points']} points and a box of length {result['data']['extent']:g}; "
        f"{result['data']['train']} trajectories of {result['data']['frames']} frames; `fit` with its defaults but for "
        "the sizes named. Relative L2 error of roll-outs over "
        f"{result['horizon']} frames, two seeds, one core (`results/cpu/one_axis.json`, `lab/analyses/one_axis.py`).",
        "",
        f"| variant | after {updates} updates | processor s | at equal processor time | updates |",
        "|---|---:|---:|---:|---:|",
    ]
    for variant, name in NAMES.items():
        cells = []
        for kind, count in (("updates", "seconds"), ("seconds", "updates")):
            found = runs[variant, kind]
            cells.append(" / ".join(f"{row['relative_l2']['average']:.4f}" for row in found))
            cells.append(f"{sum(row[count] for row in found) / len(found):.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "One axis has nothing to pool over: queries and keys of 8 heads of 128 functions are made at every point. "
        "Fourier features of about 8 waves per unit of length are 480 waves on this box, which 160 points cannot tell "
        "from noise; they mark places where the equation knows none. Set `model.fourier=periodic` where it does.",
        "",
    ]
