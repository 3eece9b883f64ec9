"""Runs in patches and strides beside the usual run of the same problem and minutes, at equal physical times."""

from __future__ import annotations

from collections.abc import Mapping

from lab.campaign.run_groups import GROUPS
from lab.campaign.spacing_runs import error_at
from lab.pages.findings import Finding, markdown, paragraph, read_measured
from lab.pages.measurements import solver_rows

MARK = "-spaced"
RUN = "kolmogorov-128/factformer_plus-3min-spaced.json"
BILL = "speed/solver_kolmogorov-128_3min_spaced_h200.json"
CPU_BILL = "cpu/solver_kolmogorov-128_3min_spaced.json"
USUAL_BILL = "speed/solver_kolmogorov-128_bf16_h200.json"
Found = Mapping[str, Finding]


def patches_and_strides(found: Found) -> list[str]:
    """The section of the results page; nothing where no such run was made."""
    rows: list[list[str]] = []
    for entry in GROUPS["spaced"]():
        finding = found.get(entry.path)
        if finding is None:
            continue
        usual = found.get(f"{entry.path.partition(MARK)[0]}.json")
        interval = finding.result["frame_dt"]
        if usual is not None and not any(row[0] == _named(usual) for row in rows):
            rows.append(_row(usual, "recipe", interval))
        rows.append(_row(finding, entry.title, interval))
    if not rows:
        return []
    columns = ["run", "patch, stride, context", "error", "error at the end", "updates", "seed"]
    return [
        "## Patches and strides",
        "",
        *paragraph(
            "`model.patch` makes patches of neighbouring points the points of the latent field, and `protocol.stride` "
            "trains on every second frame. Errors are averages over the frames that all runs of a problem predict, so "
            "they are at equal physical times. What such a surrogate costs stands in [Against the "
            "solver](#against-the-solver)."
        ),
        "",
        *markdown(columns, rows),
        "",
    ]


def _named(finding: Finding) -> str:
    return f"`{finding.path}`"


def _row(finding: Finding, title: str, interval: float) -> list[str]:
    error = f"{error_at(finding.result, interval):.4f}"
    finals = " / ".join(finding.shown_final(field) for field in finding.result["fields"])
    return [_named(finding), title, error, finals, f"{finding.updates:,}", str(finding.training["seed"])]


def headline(found: Found) -> str:
    """What patches and strides do, in a sentence."""
    fast, usual = (read_measured(name)["rows"][0]["seconds"] for name in (BILL, USUAL_BILL))
    run, plain = found[RUN].result, found[f"{RUN.partition(MARK)[0]}.json"].result
    spaced, whole = (error_at(result, run["frame_dt"]) for result in (run, plain))
    return (
        "With patches of 2 × 2 points and every second frame (`model.patch=2 protocol.stride=2 "
        f"data.num_context_frames=2`) and the same three minutes `factformer_plus` reaches {spaced:.4f} on the flows "
        f"of the first row, where it has {whole:.4f} without, both averaged over every second frame, and "
        f"ten flows of one second take {1000 * fast:.0f} ms in bfloat16 on an H200 instead of {1000 * usual:.0f} "
        "([details](docs/results.md#patches-and-strides))."
    )


def bill() -> list[str]:
    """The solver against a surrogate in patches and strides: times, speed-up at equal error, break-even."""
    measured, on_cpu = read_measured(BILL), read_measured(CPU_BILL)
    in_full, in_half = on_cpu["rows"][:2]
    (precision,), surrogate = measured["speedup_at_equal_error"], measured["rows"][0]
    equal, even = measured["speedup_at_equal_error"][precision], measured["break_even_solutions"][precision]
    seconds = measured["num_frames"] * measured["frame_dt"]
    near = next(row for row in measured["rows"] if row["start"] == "stored frame" and row["error"] < surrogate["error"])
    return [
        "### With patches and strides",
        "",
        *paragraph(
            f"The same bill for the run `{RUN}` of the section above, "
            f"{measured['batch_size']} flows at once for {seconds:g} second on {measured['hardware']}, the surrogate "
            f"in bfloat16 (`results/{BILL}`). Solver rows start from the stored frame or from the full state, each "
            "with the largest step that does not add to its error:"
        ),
        "",
        *solver_rows(measured),
        "",
        *paragraph(
            f"At equal error, by interpolation between the solver's rows, the surrogate is "
            f"{equal['stored frame']['factor']:.1f} times as fast as the solver from the stored frame and "
            f"{equal['full state']['factor']:.1f} times as fast as from the full state. The "
            f"{measured['effort']['total_seconds']:.0f} s of data generation and training are paid back after "
            f"{even['reference']:,.0f} flows against the solver that made the data, and after "
            f"{even['stored frame']:,.0f} against the solver of the same error. The goal is ten times at equal error. "
            f"On {near['resolution']}² points with steps of 1/{1 / near['dt']:.0f} s this solver already has an error "
            f"of {near['error']:.4f}."
        ),
        "",
        *paragraph(
            f"On {on_cpu['hardware']}, {on_cpu['batch_size']} flows at once (`results/{CPU_BILL}`), the same surrogate "
            f"takes {in_full['seconds']:.2f} s in float32 and {in_half['seconds']:.2f} s in bfloat16 with errors of "
            f"{in_full['error']:.4f} and {in_half['error']:.4f}, "
            f"{on_cpu['rows'][2]['seconds'] / in_half['seconds']:.0f} times as fast as the solver that made the data "
            f"and {1 / on_cpu['speedup_at_equal_error'][precision]['stored frame']['factor']:.0f} times slower than "
            "the solver of its error."
        ),
        "",
    ]
