"""Frames a second of the page to play with: `factformer serve` in a process of its own, the page in Chromium.

    python -m benchmarks.page kolmogorov-64-small --out results/cpu/page.json

Frames that the page has drawn are counted while it plays by itself, from one frame to a later one: at the speed that it
opens with, and at the highest that it offers.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from selenium.webdriver.common.by import By
from tests.browsers import chromium, use_scheme, wait

from factformer.evaluation.provenance import provenance, write_json

FASTEST = """
const speed = document.getElementById("speed");
speed.value = speed.max || speed.options[speed.options.length - 1].value;
speed.dispatchEvent(new Event("input"));
speed.dispatchEvent(new Event("change"));
return Number(speed.value);
"""
SETTLING = 3.0
"""Seconds until the first calls are over."""


def shown(browser: Any) -> int:
    found = re.search(r"frame (\d+)", browser.find_element(By.ID, "clock").text)
    return int(found.group(1)) if found else 0


def rate(browser: Any, seconds: float) -> float:
    """Frames drawn a second, from a change of the clock to a later one."""
    began = shown(browser)
    wait(browser, lambda: shown(browser) != began)
    first, start = shown(browser), time.perf_counter()
    time.sleep(seconds)
    last = shown(browser)
    wait(browser, lambda: shown(browser) != last)
    return (shown(browser) - first) / (time.perf_counter() - start)


def measure(bundle: str, threads: int, seconds: float, picture: Path | None) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "factformer", "serve", bundle, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    try:
        lines: list[str] = []
        while not (address := re.search(r"http://[\w.:]+", "".join(lines))):
            line = server.stdout.readline()
            if not line:
                sys.exit("the server ended: " + "".join(lines))
            lines.append(line)
        with tempfile.TemporaryDirectory() as profile, chromium(profile) as browser:
            use_scheme(browser, "light")
            browser.get(address.group(0))
            wait(browser, lambda: shown(browser) > 0, 60)
            time.sleep(SETTLING)
            asked = float(browser.find_element(By.ID, "speed").get_attribute("value"))
            rows = [{"asked": asked, "drawn": [rate(browser, seconds) for _ in range(3)]}]
            asked = browser.execute_script(FASTEST)
            rows.append({"asked": asked, "drawn": [rate(browser, seconds) for _ in range(3)]})
            if picture is not None:
                browser.save_screenshot(str(picture))
    finally:
        server.terminate()
        server.wait(10)
    return {
        "benchmark": "page",
        "bundle": Path(bundle).name,
        "threads": threads,
        "frames_per_second": rows,
        **provenance(seed=0, seconds=time.perf_counter() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    result = measure(options.bundle, options.threads, options.seconds, options.picture)
    for row in result["frames_per_second"]:
        print(f"asked for {row['asked']:g} frames a second, drawn", ", ".join(f"{value:.1f}" for value in row["drawn"]))
    write_json(options.out, result)


if __name__ == "__main__":
    main()
