"""Seeded losses of short trainings, written down so that a redesign can show that it computes the same numbers.

    python lab/seeded_losses.py --out results/seeded-losses/cpu.json      write them down
    python lab/seeded_losses.py --check results/seeded-losses/cpu.json    compare, bit for bit

Every recipe at small scale with the paper's model and ours, and every protocol that fits it, 20 updates each. It uses
the command line alone, whose options and files are promised, so it outlives any redesign behind them. The losses are
stored as hexadecimal floats, which lose no bit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = {
    "kolmogorov": ["kolmogorov_flow", "--resolution", "32", "--simulation-resolution", "64", "--set", "num_frames=24"],
    "turbulence": ["isotropic_turbulence", "--resolution", "12", "--simulation-resolution", "12"],
    "smoke": ["smoke_buoyancy", "--resolution", "12"],
    "darcy": ["darcy_flow", "--resolution", "29"],
    "demo": ["kolmogorov_flow", "--resolution", "32", "--simulation-resolution", "64", "--set", "num_frames=24"],
}
MODELS = ("factformer", "factformer_plus", "dilated_resnet", "fno")
UPDATES = 20


def run(*words: str, source: str | None = None) -> None:
    """A command of this source, or of the one in a folder."""
    command = [sys.executable, "-m", "factformer", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment)
    if found.returncode:
        raise SystemExit(f"{' '.join(words)}\n{found.stdout[-2000:]}{found.stderr[-2000:]}")


def losses(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for recipe, words in DATA.items():
        data = folder / f"data-{recipe}"
        if not data.exists():
            run("generate", *words, "--trajectories", "3", "--out", str(data))
        protocols = ("steady",) if recipe == "darcy" else ("latent_marching", "autoregressive")
        for model in MODELS:
            for protocol in protocols:
                if model not in ("factformer", "factformer_plus") and recipe != "kolmogorov":
                    continue
                name = f"{recipe}/{model}/{protocol}"
                out = folder / name.replace("/", "-")
                settings = {
                    "model.name": model,
                    "protocol.name": protocol,
                    "training.updates": UPDATES,
                    "training.log_every": 1,
                    "training.validate_every": UPDATES,
                    "training.batch_size": 2,
                    "training.checkpoint_every": UPDATES,
                    "data.resolution": "null",
                }
                assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
                run("train", recipe, "--data", str(data), "--out", str(out), "--device", "cpu", *assignments)
                lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
                found[name] = [float(line["loss"]).hex() for line in lines]
                found[name].append(float(lines[-1]["validation"]).hex())
                print(name, float.fromhex(found[name][-2]), float.fromhex(found[name][-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file to write the losses to")
    parser.add_argument("--check", type=Path, help="file to compare with")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = losses(Path(folder))
    seconds = time.perf_counter() - began
    if options.out is not None:
        import torch

        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, encoding="utf-8"
        ).stdout.strip()
        record = {
            "command": "python lab/seeded_losses.py",
            "commit": commit,
            "torch": torch.__version__,
            "hardware": f"{platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}",
            "threads": 1,
            "seed": 0,
            "wall_seconds": round(seconds, 1),
            "losses": found,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.check is not None:
        expected = json.loads(options.check.read_text(encoding="utf-8"))["losses"]
        different = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        print("identical" if not different else f"different: {', '.join(different)}")
        raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
