"""Attack with damaged inputs: a table of the outcomes, and for each failure what makes it again."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from arena import Arena, Outcome
from artefacts import make_kit
from doors import DOORS, Failure, attack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--door", choices=DOORS)
    parser.add_argument("--index", type=int, help="one input alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures.jsonl"))
    options = parser.parse_args()
    doors = [options.door] if options.door else list(DOORS)
    todo = [(doors[index % len(doors)], index // len(doors)) for index in range(options.inputs)]
    if options.index is not None:
        todo = [(door, options.index) for door in doors]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with Arena() as arena:
            kit = make_kit(root / "kit", arena)

        def work(job: int) -> list[tuple[str, Outcome, Failure | None]]:
            found = []
            with Arena() as arena:
                kit.tell(arena)
                for door, index in todo[job :: options.jobs]:
                    outcome, failure = attack(arena, kit, root / f"{door} {index}", options.seed, door, index)
                    found.append((door, outcome, failure))
                    if failure:
                        log.write(json.dumps({"seed": options.seed, **asdict(failure)}) + "\n")
                        log.flush()
            return found

        with ThreadPoolExecutor(options.jobs) as pool, options.failures.open("w", encoding="utf-8") as log:
            results = [item for part in pool.map(work, range(options.jobs)) for item in part]
    failures = [failure for _, _, failure in results if failure]
    print(f"{'door':<14} {'inputs':>7} {'done':>6} {'refused':>8} {'failed':>7} {'slowest':>8} {'memory':>8}")
    for door in doors:
        mine = [(outcome, failure) for name, outcome, failure in results if name == door]
        codes = collections.Counter(outcome.code for outcome, failure in mine if not failure)
        seconds = max((outcome.seconds for outcome, _ in mine), default=0)
        memory = max((outcome.megabytes for outcome, _ in mine), default=0)
        counts = (len(mine), codes[0] + codes[3], codes[1] + codes[2], sum(failure is not None for _, failure in mine))
        print("{:<14} {:>7} {:>6} {:>8} {:>7} {:>6.1f} s {:>5.0f} MB".format(door, *counts, seconds, memory))
    for (door, reason), count in collections.Counter((f.door, f.reason) for f in failures).most_common():
        print(f"{count:>5}  {door}: {reason}")
    if failures:
        print(f"failures are in {options.failures}; one again: --seed {options.seed} --door DOOR --index INDEX")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
