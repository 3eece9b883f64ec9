"""The pages of results say what the files under results/ say."""

import json
import random
from pathlib import Path

from lab.campaign.run_groups import GROUPS
from lab.pages import cards, make, resolutions, sections
from lab.pages.findings import Finding

ROOT = Path(__file__).parents[2]


def test_every_page_is_what_its_script_makes():
    written = make.written()
    assert {path.name for path in written} >= {"results.md", "research-log.md", "README.md"}
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run python -m lab.pages.make"


def test_numbers_of_the_files_are_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    error = json.loads((ROOT / "results/kolmogorov-128/factformer_plus-3min.json").read_text())
    assert f"{error['fields']['vorticity']['relative_l2']:.4f}" in page


def test_every_bundle_of_the_zoo_has_a_card():
    written = make.written()
    for description in (ROOT / "zoo").glob("*/bundle.json"):
        path = description.parent / "README.md"
        card = written.get(path) or path.read_text(encoding="utf-8")
        for part in ("data", "recipe", "error", "Limits:", "results/"):
            assert part in card


def test_every_result_says_what_made_it():
    files = list((ROOT / "results").rglob("*.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert {"command", "commit"} <= set(result), path.name
        assert result.get("hardware") or result.get("device"), path.name
        if "entry" in result:
            assert result["commit"], f"{path.name}: set FACTFORMER_COMMIT where there is no history"
            assert result["data"]["fingerprints"][result["split"]] == result["dataset_fingerprint"]


def finding(path, model, error, protocol="latent_marching", test_set="abc", updates=1000):
    errors = {"relative_l2": error, "relative_l2_final": 2 * error, "standard_error": 0.001}
    training = {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "batch_size": 8,
        "precision": "bf16-mixed",
        "augment": False,
        "ema_decay": None,
        "seed": 0,
    }
    result = {
        "model": model,
        "fields": {"vorticity": errors, "solution": errors},
        "dataset_fingerprint": test_set,
        "parameters": 3_500_000,
        "hardware": "a machine",
        "num_windows": 8,
        "num_trajectories": 2,
        "training": {
            "protocol": {"name": protocol, "marching_steps": 4, "pushforward": 2},
            "training": training,
            "training_seconds": 180.0,
            "updates": updates,
        },
    }
    return Finding(path, result)


def found(*items):
    return {item.path: item for item in items}


def test_a_card_warns_of_roll_outs_that_leave_the_flow():
    curve = {"relative_l2_per_frame": [0.1, 0.9, 1.5, 2.0]}
    assert "from frame 3 on" in cards.leaves({"fields": {"vorticity": curve}})
    assert cards.leaves({"fields": {"vorticity": {"relative_l2_per_frame": [0.1, 1.3]}}}) == ""
    assert cards.leaves(None) == ""


def test_roll_outs_that_go_on_are_shown_where_there_are_any():
    plain = finding("kolmogorov-128/ffno-3min.json", "ffno", 0.2)
    assert sections.beyond(GROUPS["kolmogorov"](), found(plain)) == []
    curve = [0.01 * k for k in range(1, 9)]
    field = {"relative_l2_per_frame": curve, "correlation_time": 0.375}
    far = {"num_frames": 8, "num_windows": 3, "num_diverged": 1, "fields": {"vorticity": field}}
    gone_on = finding("kolmogorov-128/factformer_plus-3min.json", "factformer_plus", 0.1)
    gone_on = Finding(gone_on.path, {**gone_on.result, "beyond": far})
    text = "\n".join(sections.beyond(GROUPS["kolmogorov"](), found(plain, gone_on)))
    assert "| run | field | frame 2 | frame 4 | frame 6 | frame 8 |" in text
    assert "| `factformer_plus` | vorticity | 0.020 | 0.040 | 0.060 | 0.080 | 0.38 | 1 of 3 |" in text
    assert "Not measured over longer roll-outs: `ffno`." in text


def test_a_run_that_went_back_says_so_with_the_time_it_cost():
    one = finding("kolmogorov-128/ffno-3min.json", "ffno", 0.1)
    seconds = {100: 10.0, 200: 20.0, 300: 70.0, 400: 80.0}
    one.result["metrics"] = [{"update": u, "seconds": s, "learning_rate": 1e-3} for u, s in seconds.items()]
    assert one.trouble == ""
    one.result["training"]["rollbacks"] = 1
    assert "about 35 s were lost" in one.trouble  # 50 s where 10 are usual and 15 would be nothing strange
    assert one.trouble in "\n".join(sections.equal_cost("kolmogorov", found(one)))
    del one.result["training"]["rollbacks"]
    for line in one.result["metrics"]:
        line["learning_rate"] = 5e-4
    assert "went back" in one.trouble


def test_a_long_run_that_shared_its_gpu_says_at_what_rate():
    short = finding("kolmogorov-128/factformer-3min.json", "factformer", 0.3, updates=18_000)
    long = finding("kolmogorov-128/factformer-15min.json", "factformer", 0.2, updates=9_000)
    assert not any("another run" in line for line in sections.long_runs(found(short, long)))
    long.result["training"]["beside"] = "another one"
    assert sections.long_runs(found(short, long))[-1] == (
        "`factformer` shared the GPU with another run: 50 updates per second, against 100 alone."
    )


def test_the_best_model_is_first_and_bold_whoever_it_is():
    ours = finding("kolmogorov-128/factformer_plus-3min.json", "factformer_plus", 0.2)
    rival = finding("kolmogorov-128/ffno-3min.json", "ffno", 0.1)
    lines = sections.equal_cost("kolmogorov", found(ours, rival))
    assert lines[2].startswith("| **`ffno`** | 0.1000 ± 0.0010 | 0.2000 |")
    assert lines[3].startswith("| `factformer_plus` | 0.2000")
    assert sum("not run yet" in line for line in lines) == len(GROUPS["kolmogorov"]()) - 2


def test_our_recipe_stands_beside_the_papers_for_each_model():
    plain = finding("kolmogorov-128/dilated_resnet-3min.json", "dilated_resnet", 0.2)
    ours = finding("kolmogorov-128/dilated_resnet-our-recipe-3min.json", "dilated_resnet", 0.1)
    plus = finding("kolmogorov-128/factformer_plus-3min.json", "factformer_plus", 0.05)
    lines = sections.equal_cost("kolmogorov-recipe", found(plain, ours, plus))
    assert lines[0].endswith("| paper's recipe, all frames |")
    assert lines[2].startswith("| **`factformer_plus`** | 0.0500") and lines[2].endswith("| – |")
    assert lines[3].startswith("| `dilated_resnet` | 0.1000") and lines[3].endswith("| 0.2000 ± 0.0010 |")
    words = sections.recipe_effects(found(plain, ours, plus))
    assert "`dilated_resnet` from 0.2000 ± 0.0010 to 0.1000 ± 0.0010" in words
    assert "`factformer` has not been run" in words


def test_rows_of_another_test_set_are_marked():
    items = [finding(f"kolmogorov-128/{m}-3min.json", m, 0.1 + i / 100) for i, m in enumerate(("fno", "ffno"))]
    odd = finding("kolmogorov-128/factformer-3min.json", "factformer", 0.05, test_set="other")
    lines = sections.equal_cost("kolmogorov", found(*items, odd))
    assert "†" in lines[2]
    assert any("another test set" in line for line in lines)


def test_a_roll_out_that_diverged_comes_last_and_says_so():
    good = finding("kolmogorov-128/ffno-3min.json", "ffno", 0.9)
    bad = finding("kolmogorov-128/fno-3min.json", "fno", 0.1)
    bad.result["fields"]["vorticity"] = {"relative_l2": None, "relative_l2_final": None, "standard_error": None}
    lines = sections.equal_cost("kolmogorov", found(good, bad))
    assert "ffno" in lines[2]
    assert "diverged" in lines[3]


def test_changes_are_held_against_the_mean_of_the_base_runs():
    base = [
        finding("research/one-frame-per-call-local-kernel-7.json", "factformer_plus", 0.30),
        finding("research/one-frame-again.json", "factformer_plus", 0.32),
    ]
    idea = finding("research/one-frame-pushforward-10-at-every-tenth-update.json", "factformer_plus", 0.25, updates=500)
    for item in (*base, idea):
        del item.result["fields"]["solution"]
    page = sections.research_log(found(*base, idea))
    (line,) = [line for line in page.splitlines() if line.startswith("| one frame, pushforward 10")]
    assert "-0.0600" in line
    assert "better" in line
    assert "2.00 ×" in line
    assert "3 of" in page


def test_what_the_base_runs_differ_by_is_chance():
    entries = GROUPS["ablations"]()
    base = [entry for entry in entries if entry.title in ("factformer", "factformer, seed 1")]
    other = next(entry for entry in entries if entry.title == "factformer, 1 head")
    bases = {"factformer": [entry.path for entry in base]}
    for errors, verdict in (((0.3, 0.31), "worse"), ((0.3, 0.6), "better, within chance (0.6)")):
        runs = [finding(entry.path, "factformer", error) for entry, error in zip(base, errors, strict=True)]
        rows = sections.variants([other], found(*runs, finding(other.path, "factformer", 0.35)), bases, noise=0.02)
        assert f"| {verdict} |" in rows[-1]


def test_three_seeds_say_what_is_chance():
    """Drawn from the same recipe, one more run is called different in about one of 20 cases."""
    entries = GROUPS["ablations"]()
    base = [entry for entry in entries if entry.title in ("factformer", "factformer, seed 1", "factformer, seed 2")]
    other = next(entry for entry in entries if entry.title == "factformer, 1 head")
    draw, bases, called = random.Random(0), {"factformer": [entry.path for entry in base]}, 0
    for _ in range(400):
        runs = [finding(entry.path, "factformer", draw.gauss(0.3, 0.01)) for entry in (*base, other)]
        called += "within chance" not in sections.variants([other], found(*runs), bases, noise=0.5)[-1]
    assert 8 <= called <= 34


def test_the_resolution_study_takes_the_runs_at_85_from_the_table():
    runs = [finding(f"darcy-{size}/fno-2min.json", "fno", size / 1000, "steady") for size in (61, 85)]
    text = "\n".join(resolutions.study(found(*runs)))
    assert "| `fno` | 0.0610 ± 0.0010 | 0.0850 ± 0.0010 | not run yet | not run yet |" in text
    assert resolutions.curves(found(*runs)) == {"fno": [0.061, 0.085, None, None]}


def test_the_resolution_study_says_how_flat_our_line_is():
    runs = [
        finding(f"darcy-{size}/factformer_plus-2min.json", "factformer_plus", error, "steady")
        for size, error in ((61, 0.006), (85, 0.004), (211, 0.005))
    ]
    text = "\n".join(resolutions.study(found(*runs)))
    assert "1.50 times the smallest; all lie within 20% of their mean" in " ".join(text.split())
    assert "At 141²" not in text
    tried = finding("darcy-141/factformer_plus-every-second-point-2min.json", "factformer_plus", 0.007, "steady")
    assert "At 141² it gave 0.0070" in "\n".join(resolutions.study(found(*runs, tried)))
