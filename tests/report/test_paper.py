"""The published numbers against the rows of the paper's LaTeX, read by another route than they were typed."""

from __future__ import annotations

import re

import pytest

from factformer.errors import UserError
from factformer.report import paper

ROWS = {
    "table1": {
        ("vorticity", 0): r"""& 0.3177 & \cellcolor{gray!15}0.2978 &\cellcolor{gray!15}\textbf{0.1486}
            & 0.2453 & 0.8156 & \cellcolor{gray!15}0.1655 & 0.8835 & \cellcolor{gray!15}0.1734 \\""",
        ("vorticity", 1): r"""& \cellcolor{gray!15}0.4423 & 0.4567& \cellcolor{gray!15}\textbf{0.2811}& 0.3861
            & 1.1692 & \cellcolor{gray!15}0.3051 & 1.0963 & \cellcolor{gray!15}0.3017 \\""",
        "seconds": r"& 0.73 & 0.81 & 0.86 & 1.01 & 4.69 & 1.78 & 3.14 & 1.38\\",
        "parameters": "85.1 85.1 3.7 3.7 2.4 2.4 3.5 3.5",
    },
    "table2": {
        ("pressure", 0): r"""& 0.8080 &  \cellcolor{gray!15}0.4634 & \cellcolor{gray!15}0.3151 & 0.3264
            & \cellcolor{gray!15}\textbf{0.1725} & 0.1778 & 0.2989 &  \cellcolor{gray!15}0.2545 \\""",
        ("pressure", 1): r"""& 1.1285 & \cellcolor{gray!15}0.6522 & 0.4250 & \cellcolor{gray!15}0.4159
            &  0.2573 &  \cellcolor{gray!15}\textbf{0.2448} & 0.4407 & \cellcolor{gray!15}0.3431  \\""",
        ("velocity", 0): r"""& 0.3967 & \cellcolor{gray!15}0.3382 & \cellcolor{gray!15}0.2298 & 0.2303
            & \cellcolor{gray!15}\textbf{0.1143} & 0.1250 & 0.1775 & \cellcolor{gray!15}0.1670  \\""",
        ("velocity", 1): r"""& 0.6561 & \cellcolor{gray!15}0.4735 & \cellcolor{gray!15}0.2799 & 0.2850
            & 0.1675 &  \cellcolor{gray!15}\textbf{0.1671} & 0.2594 &  \cellcolor{gray!15}0.2218  \\""",
        "seconds": r"& 1.01 & 0.91 & 2.77 & 1.37 & 12.67 & 6.89 & 2.68& 1.31  \\",
        "parameters": "509.8 509.8 3.0 3.0 6.9 6.9 5.1 5.1",
    },
    "table3": {
        ("density", 0): r"""& 0.1607 & \cellcolor{gray!15}0.1344 & \cellcolor{gray!15}0.1038 & 0.1236 &
            \cellcolor{gray!15}\textbf{0.0843} & 0.0999 & 0.1017 & \cellcolor{gray!15}0.0942 \\""",
        ("density", 1): r"""& 0.1775 & \cellcolor{gray!15}0.1287 & 0.1415 & \cellcolor{gray!15}0.1219
            & 0.1070 &\cellcolor{gray!15} 0.1062 & 0.1693 & \cellcolor{gray!15}\textbf{0.0941} \\""",
        ("velocity", 0): r"""& 0.5198 & \cellcolor{gray!15}0.4255 & \cellcolor{gray!15}0.3419 & 0.3713 &
            \cellcolor{gray!15}\textbf{0.2378} &  0.2747& 0.3537 & \cellcolor{gray!15}0.2592  \\""",
        ("velocity", 1): r"""& 1.0245 & \cellcolor{gray!15}0.6718 & 0.8655 & \cellcolor{gray!15}0.6146
            & 0.5372 & \cellcolor{gray!15}0.5023 & 0.7881 & \cellcolor{gray!15}\textbf{0.4482}  \\""",
        "seconds": r"& 3.19 & 1.47 & 6.35 & 2.75 & 27.49 &  6.94& 5.61 & 2.62 \\",
        "parameters": "509.8 509.8 3.0 3.0 6.9 6.9 4.6 4.6",
    },
}
ORDER = [(model, protocol) for model in paper.MODELS for protocol in (paper.AR, paper.LM)]


def numbers(row):
    return [float(text) for text in re.findall(r"\d+\.\d+", row)]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_tables_hold_the_published_numbers(name):
    benchmark = paper.BENCHMARKS[name]
    results = [benchmark.find(model, protocol) for model, protocol in ORDER]
    for key, row in ROWS[name].items():
        if key == "seconds":
            ours = [r.seconds_per_batch for r in results]
        elif key == "parameters":
            ours = [round(r.parameters / 1e6, 1) for r in results]
        else:
            ours = [r.errors[key[0]][key[1]] for r in results]
            bold = float(re.search(r"textbf\{([\d.]+)\}", row).group(1))
            assert min(ours) == bold
        assert ours == numbers(row)


def test_table_of_attention_cost_gives_the_published_ratios():
    factorized, matmul, einsum = paper.TABLE_4
    assert [c.relative_l2 for c in paper.TABLE_4] == [0.1529, 0.5853, 0.5853]
    assert matmul.encoder_seconds / factorized.encoder_seconds == pytest.approx(6.78, abs=0.01)
    assert einsum.training_seconds / factorized.training_seconds == pytest.approx(3.08, abs=0.01)
    assert einsum.training_memory_mb == 12029
    assert factorized.training_memory_mb == 5217


def test_an_unknown_result_names_the_choices():
    with pytest.raises(UserError, match="factformer/latent_marching"):
        paper.TABLE_1.find("factfomer", "latent_marching")
