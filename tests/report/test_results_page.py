"""docs/results.md says what the files under results/ say."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_its_script_makes():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == script.page(), "run docs/make_results.py"
    error = json.loads((ROOT / "results/kolmogorov-128/factformer_plus-3min.json").read_text())
    assert f"{error['fields']['vorticity']['relative_l2']:.4f}" in script.page()


def test_every_result_says_what_made_it():
    files = list((ROOT / "results").rglob("*.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert {"command", "commit"} <= set(result), path.name
        assert result.get("hardware") or result.get("device"), path.name
