"""The tables and figures of the paper: where they stand in it, what it says with them, and what differs here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """What one target stands for."""

    place: str
    """Where it is in the paper."""
    says: str
    """What the paper says with it, in a sentence."""
    differs: str
    """What differs here, and why, in a sentence."""


SHORT_RUNS = (
    "All models of a table train for the same minutes here, the paper's for 100,000 (LM) or 64,000 (AR) updates"
)
ITEMS = {
    "table1": Item(
        "Table 1",
        "F-FNO (AR) has the smallest error; FactFormer and Dil-ResNet are close behind with latent marching and fail "
        "without it.",
        f"{SHORT_RUNS}, on flows of our own solver; the paper's grid is 256².",
    ),
    "table2": Item(
        "Table 2",
        "Dil-ResNet has the smallest error; FactFormer comes second and is 5 times faster.",
        f"{SHORT_RUNS}, on fewer solutions, which start as Rogallo published.",
    ),
    "table3": Item(
        "Table 3",
        "Dil-ResNet (AR) has the smallest average error; FactFormer (LM) is best at the last frame.",
        f"{SHORT_RUNS}, on fewer solutions.",
    ),
    "table4": Item(
        "Table 4",
        "Factorized attention is more accurate than linear attention, about 3 times faster in training, and needs less "
        "than half of the memory.",
        "The paper's times are from an RTX 3090 with PyTorch 1.8.2; ours name their hardware.",
    ),
    "figure-darcy-resolutions": Item(
        "figure of Section 4.2",
        "The error of Dil-ResNet grows with the training resolution; those of Transformers and FNO hardly change.",
        "Each run trains for two minutes, so a finer grid gets fewer updates; the paper's points at 43 and 421 and the "
        "models that have not been run are missing.",
    ),
    "figure-error-trend": Item(
        "figures of Section 4.2 (128²) and Appendix C (256²)",
        "Errors of LM models grow more slowly than those of AR models, some of which blow up; linear attention is "
        "less stable than factorized attention.",
        "The curves are in the result files; the page shows their averages.",
    ),
    "figure-error-trend-turbulence": Item(
        "two figures of Appendix C",
        "Dil-ResNet starts with the smallest error and keeps it.",
        "As for Table 2.",
    ),
    "figure-error-trend-smoke": Item(
        "two figures of Appendix C",
        "Dil-ResNet starts with the smallest error; FactFormer catches up at the end.",
        "As for Table 3.",
    ),
    "ablation-heads": Item(
        "figure of Appendix D",
        "Fewer heads raise the error significantly; 8 are the final choice.",
        "Our runs are at 64² for one minute and judged by the test flows, the paper's at 128² by validation flows.",
    ),
    "ablation-kernel-dim": Item(
        "figure of Appendix D",
        "A larger kernel dimension lowers the error; 128 is the final choice.",
        "As for the number of heads.",
    ),
    "seeds": Item(
        "figure of Appendix D",
        "Three seeds end at a similar loss.",
        "Our three runs are at 64² for one minute each.",
    ),
    "figure-cost-2d": Item(
        "figure of Appendix D",
        "Time and memory of linear attention grow faster with the kernel dimension than those of factorized attention.",
        "It needs a GPU for numbers that can be compared.",
    ),
    "figure-cost-3d": Item(
        "figure of Appendix D",
        "A training step with factorized attention costs less on every grid.",
        "It needs a GPU for numbers that can be compared.",
    ),
    "spectra": Item(
        "Figure of Section 4.3",
        "Less than 5 % of the singular values of linear attention hold over 90 % of the energy.",
        "It needs both models trained at 128².",
    ),
    "kernels": Item(
        "figure of Appendix D",
        "All kernels depend on the distance alone, as the rotary encoding suggests.",
        "It needs a model trained at 128²; the report of any run shows the kernels of its model.",
    ),
    "pictures": Item(
        "Figure 1 and Appendix F",
        "Predictions look like the truth.",
        "The numbers are those of the runs that are drawn; `reproduce` writes the pictures. The paper's "
        "Kolmogorov flow has 256 × 256 points; at 128 × 128, the grid of our run, it reports 0.1529.",
    ),
}
HYPERPARAMETERS = {
    "kolmogorov": {"dim": 128, "depth": 4, "heads": 8, "kernel_dim": 128},
    "turbulence": {"dim": 128, "depth": 4, "heads": 6, "kernel_dim": 192},
    "smoke": {"dim": 128, "depth": 3, "heads": 6, "kernel_dim": 192},
    "darcy": {"dim": 128, "depth": 3, "heads": 12, "kernel_dim": 128},
}
"""The table of Appendix A."""
