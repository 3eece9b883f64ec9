"""The equal-cost tables, within the time that a machine is there for.

    python -m lab.campaign run kolmogorov --seconds 560 --pack OUT       run what results/ does not hold yet
    python -m lab.campaign run long/factformer_plus --seconds 560 --pack OUT --state campaign-state
    python -m lab.campaign collect FOLDER                                put archives into results/ and zoo/
    python -m lab.campaign list                                          what is there and what is missing

`run` takes groups, or single runs as GROUP/BEGINNING-OF-NAME. A run in segments that is not finished leaves pieces
``*.state-N`` in OUT; `collect` puts them into ``campaign-state/``, which the next call reads. Runs that are not held
against the clock may share a GPU: one process each, under ``nvidia-cuda-mps-control -d``, and `--beside` says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.campaign.campaign import Campaign, summary
from lab.campaign.datasets import DATA
from lab.campaign.entries import again
from lab.campaign.run_groups import GROUPS, find_entries
from lab.campaign.segments import collect
from lab.command_line import run_command

STATE = "campaign-state"
PASSED = ("pack", "state", "minutes", "device", "scale", "beside")
"""Options that a campaign takes as they are, also when it starts again."""


def run(options: argparse.Namespace) -> int:
    entries = find_entries(options.groups)
    if options.seed:
        entries = [again(entry, options.seed) for entry in entries]
    entries = [entry for entry in entries if entry.path not in options.skip]
    data = {}
    for item in options.trajectories:
        recipe, train, test = item.split(",")
        data[recipe] = replace(DATA[recipe], train=int(train), test=int(test))
    work = options.work or Path(tempfile.mkdtemp(prefix="campaign-"))
    given = {name: getattr(options, name) for name in ("seconds", "fresh", *PASSED)}
    say = partial(print, flush=True)
    campaign = Campaign(options.results, work, data=data, assignments=options.set, say=say, **given)
    endings = campaign.run(entries)
    print(summary(endings), flush=True)
    left = campaign.runner.left()
    if campaign.device.type == "cuda" and not campaign.device_answers() and left > 120:
        # A failed kernel takes its process with it: a new process does the rest, without the run that failed.
        options.skip += [one.label for one in endings if one.word in ("done", "failed")]
        print("starting again without the run that failed", flush=True)
        words = ["run", *options.groups, "--seconds", str(left - 10), "--results", str(options.results)]
        words += [word for path in options.skip for word in ("--skip", path)]
        words += [word for item in options.set for word in ("--set", item)]
        words += [word for item in options.trajectories for word in ("--trajectories", item)]
        words += ["--fresh"] * options.fresh
        for name in ("seed", *PASSED):
            if getattr(options, name):
                words += [f"--{name}", str(getattr(options, name))]
        os.execv(sys.executable, [sys.executable, "-m", "lab.campaign", *words])
    return int(any(one.word == "failed" for one in endings))


def gather(options: argparse.Namespace) -> int:
    for path in collect(options.folder, options.root):
        print(path.relative_to(options.root))
    for piece in sorted(options.folder.rglob("*.state-*")):
        target = options.root / STATE / piece.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(piece, target)
        print(target.relative_to(options.root))
    return 0


def show(options: argparse.Namespace) -> int:
    for group in GROUPS:
        for entry in find_entries([group]):
            there = (options.results / entry.path).is_file()
            print(f"{'there' if there else 'missing':8s} {entry.minutes:4g} min  {group}/{entry.name}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("groups", nargs="+", metavar="GROUP[/NAME]")
    runs.add_argument("--seconds", type=float, default=None, help="begin nothing that does not fit into this")
    runs.add_argument("--results", type=Path, default=Path("results"))
    runs.add_argument("--work", type=Path, default=None, help="runs and checkpoints; a temporary folder by default")
    runs.add_argument("--pack", type=Path, default=None, help="folder for archives of everything that is new")
    runs.add_argument("--state", type=Path, default=Path(STATE), help="pieces of runs in segments")
    runs.add_argument("--minutes", type=float, default=None, help="training time instead of the entries' own")
    runs.add_argument("--scale", default="paper", choices=["tiny", "paper"])
    runs.add_argument("--device", default=None)
    runs.add_argument("--seed", type=int, default=0, help="run again with another seed, into files of its own")
    runs.add_argument("--trajectories", action="append", default=[], metavar="DATA,TRAIN,TEST")
    runs.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    runs.add_argument("--fresh", action="store_true", help="run what is there again")
    runs.add_argument("--beside", default="", metavar="TEXT", help="what else uses the device, to be recorded")
    runs.add_argument("--skip", action="append", default=[], metavar="PATH")
    runs.set_defaults(act=run)
    gathers = commands.add_parser("collect")
    gathers.add_argument("folder", type=Path)
    gathers.add_argument("--root", type=Path, default=Path())
    gathers.set_defaults(act=gather)
    shows = commands.add_parser("list")
    shows.add_argument("--results", type=Path, default=Path("results"))
    shows.set_defaults(act=show)
    return run_command(parser)


if __name__ == "__main__":
    sys.exit(main())
