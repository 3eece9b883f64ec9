"""Tables of what the checks on a GPU measured: conditions, other cards, peaks of memory, several time steps.

    python -m lab.pages.gpu_checks        count the peaks again that a GPU measured: results/cpu/counted_peaks.json

`lab.pages.make` puts the tables between the marks of their pages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factformer._support.documents import read_json
from factformer.evaluation.baselines import BOX
from factformer.evaluation.provenance import provenance, write_json
from lab import ROOT
from lab.checks.memory_peaks import counted
from lab.pages.findings import NOT_RUN, markdown

RESULTS = ROOT / "results"
COUNTED = RESULTS / "cpu" / "counted_peaks.json"
STEP = "kolmogorov-step-"
WAYS = ("227 KB and TMA", "163 KB, no TMA", "99 KB, no TMA", "compiled", "eager")


def conditions() -> list[str]:
    """What parameters, masks and forcing cost, over a plain update."""
    rows = _rows("speed/conditioned_now_h200.json")
    cases = list(dict.fromkeys((row["case"], row["model"]) for row in rows))
    known = {(row["case"], row["model"], row["parts"]): row for row in rows}
    parts = [part for part in dict.fromkeys(row["parts"] for row in rows) if part != "plain"]
    table = []
    for part in parts:
        found = (known[*case, part] for case in cases)
        table.append([part, *(f"{row['infer_ratio']:.2f} / {row['train_ratio']:.2f}" for row in found)])
    plain = (known[*case, "plain"] for case in cases)
    table.append(["plain, ms", *(f"{row['infer_ms']:.3g} / {row['train_ms']:.3g}" for row in plain)])
    return markdown(["", *(f"{case}, `{model}`" for case, model in cases)], table)


def other_cards() -> list[str]:
    """Every way of execution, with the speed over compiled layers."""
    rows = _rows("speed/ways_h200.json") + _rows("speed/ways_more_h200.json")
    known = {(row["case"], row["way"]): row for row in rows}
    table = []
    for case in dict.fromkeys(row["case"] for row in rows):
        base = known.get((case, "compiled"), {})
        for way in WAYS:
            row = known.get((case, way), {})
            times = [
                f"{row[mode]:.3g}" if mode in row else row.get("status", NOT_RUN) for mode in ("infer_ms", "train_ms")
            ]
            faster = [
                f"{base[mode] / row[mode]:.2g}" if mode in row and mode in base else ""
                for mode in ("infer_ms", "train_ms")
            ]
            errors = [f"{row[key]:.1%}" if key in row else "" for key in ("prediction_error", "gradient_error")]
            memory = f"{row['train_gb']:.3g} GB" if "train_gb" in row else ""
            table.append([case, way, " / ".join(times), " / ".join(filter(None, faster)), memory, " / ".join(errors)])
    head = [
        "network",
        "way",
        "call / update, ms",
        "times as fast as compiled",
        "peak of an update",
        "error: call / gradient",
    ]
    return markdown(head, table)


def peaks() -> list[str]:
    """Peaks of memory that a GPU measured, beside those that the plan counts."""
    known = {_key(row): row for row in read_json(COUNTED)["rows"]}
    table = []
    for row in _measured_peaks():
        patch = f", patch {row['patch']}" if row["patch"] > 1 else ""
        cells = [f"{row['grid'][0]}³{patch}", row["way"]]
        if row.get("prediction alone"):
            measured, expected = row.get("infer_gb"), known[_key(row)]["inference_bytes"] / 1e9
            ms = row.get("infer_ms")
        else:
            measured, expected = row.get("train_gb"), known[_key(row)][f"{row['way']}_bytes"] / 1e9
            ms = row.get("train_ms")
        cells.append("one call" if row.get("prediction alone") else "update")
        cells.append("does not fit" if row["status"] == "OOM" else f"{measured:.3g} GB" if measured else row["status"])
        cells.append(f"{expected:.3g} GB")
        fits = measured and row["status"] == "ok"
        cells.append(f"{expected / measured:.2f}" if fits and measured else "")
        cells.append(f"{ms:.3g} ms" if fits and ms else "")
        table.append(cells)
    return markdown(["grid", "layers", "", "measured", "counted", "counted over measured", "time"], table)


def time_steps() -> list[str]:
    """One surrogate for several time steps, and one for each."""
    folder = RESULTS / "kolmogorov-steps-128"
    several = {name: folder / f"all-{name}.json" for name in ("10k", "40k")}
    errors = {
        name: {data: _error(found) for data, found in read_json(path)["judged_on"].items()}
        for name, path in several.items()
        if path.is_file()
    }
    table = []
    for data in sorted(errors["10k"], key=lambda name: float(name.removeprefix(STEP))):
        step = data.removeprefix(STEP)
        path = folder / f"{step}-10k.json"
        alone = _error(read_json(path)["judged_on"][data]) if path.is_file() else None
        row = [step, "–" if alone is None else f"{alone:.4f}"]
        for name in several:
            one = errors.get(name, {}).get(data)
            ratio = "" if one is None or alone is None else f" ({one / alone:.2f} times)"
            row.append(NOT_RUN if one is None else f"{one:.4f}{ratio}")
        table.append(row)
    return markdown(["time step", "trained at that step alone", "one surrogate", "the same, 40,000 updates"], table)


def _error(result: Mapping[str, Any]) -> float:
    return float(result["fields"]["vorticity"]["relative_l2"])


def _rows(name: str) -> list[dict[str, Any]]:
    """Of a measurement that may not be there yet."""
    path = RESULTS / name
    found: list[dict[str, Any]] = read_json(path)["rows"] if path.is_file() else []
    return found


def _measured_peaks() -> list[dict[str, Any]]:
    return _rows("speed/memory_h200.json") + _rows("speed/memory_more_h200.json")


def _key(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["grid"][0], row["patch"]


def main() -> None:
    began, rows = time.perf_counter(), []
    for size, patch in dict.fromkeys(map(_key, _measured_peaks())):
        rows.append({"grid": [size] * 3, "patch": patch, **counted(size, patch, BOX)})
        print(rows[-1], flush=True)
    seconds = time.perf_counter() - began
    result = {"analysis": "counted peaks", "rows": rows, **provenance(seed=None, seconds=seconds, device="cpu")}
    result["command"] = "python -m lab.pages.gpu_checks"
    write_json(Path(COUNTED), result)


if __name__ == "__main__":
    main()
