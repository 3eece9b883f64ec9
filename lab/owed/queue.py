"""Everything that is to be run on a GPU, as data: checks and runs of campaigns, in the order of their worth."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from factformer.studies.apebench.scenarios import SCENARIOS
from factformer.studies.targets.apebench import MODELS as APEBENCH_MODELS
from lab.campaign.entries import PLUS, Entry
from lab.campaign.run_groups import GROUPS, find_entries
from lab.checks.jax_networks import NETWORKS

SECONDS_AROUND = 15.0
"""Of a run beyond training and data: warm-up, evaluation."""
PIECE = 150.0
"""Seconds of a run in segments that are worth its data."""
BEFORE = ".device-deps/before/src"
"""Where the earlier source lies that losses are compared with."""


@dataclass(frozen=True)
class Planned:
    """What is to be done, and how long it takes."""

    topic: str
    """In one word, what the numbers are for."""
    title: str
    minutes: float


@dataclass(frozen=True)
class Check(Planned):
    """A command that writes a file. Its words in braces are filled in: ``out``, ``work``, ``python``, ``device``."""

    path: str
    """Below the folder of results."""
    command: str
    tiny: str = ""
    """The same in small; by default the command with ``--tiny``."""
    also: tuple[str, ...] = ()
    """More files that it writes."""
    beside: bool = False
    """Whether others may use the GPU at the same time: it measures no time and ends after a number of updates."""

    def line(self, results: Path, work: Path, scale: str) -> str:
        """What to type."""
        tiny = scale == "tiny"
        text = (self.tiny or f"{self.command} --tiny") if tiny else self.command
        places = {"out": results / self.path, "work": work, "python": sys.executable}
        return text.format(**{key: shlex.quote(str(value)) for key, value in places.items()}, device=device(scale))


@dataclass(frozen=True)
class Runs:
    """Runs of `lab.campaign`: groups or ``GROUP/NAME``."""

    topic: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Owed(Planned):
    """One thing to do: a check, or a run of a campaign."""

    paths: tuple[str, ...]
    work: Check | Entry

    @property
    def seconds(self) -> float:
        """What must be left to begin it: of a run in segments a piece is enough."""
        whole = 60 * self.minutes
        return min(whole, PIECE) if isinstance(self.work, Entry) and self.work.in_segments else whole

    @property
    def beside(self) -> bool:
        """Whether others may use the GPU at the same time."""
        if isinstance(self.work, Check):
            return self.work.beside
        return "training.budget_minutes=null" in self.work.run.settings and not self.work.in_segments


def device(scale: str) -> str:
    return "cpu" if scale == "tiny" else "cuda"


def check(topic: str, name: str, title: str, minutes: float, path: str, words: str = "") -> Check:
    """A command of `lab.checks`."""
    command = " ".join(["{python} -m", f"lab.checks.{name}", *filter(None, [words]), "--out {out}"])
    return Check(topic, title, minutes, path, command)


def _bill(bundle: str, pde: str, size: int, precision: str, minutes: float) -> Check:
    """Ten flows of a bundle against its solver."""
    name = f"{bundle}_{precision.partition('-')[0]}"
    few = "--split test --overwrite --out {work}/bill"
    make = (
        f"{{python}} -m factformer generate {pde} {few}-{bundle} --preset paper --resolution {size} --trajectories 10"
    )
    bill = "{python} -m factformer benchmark solver --out {out} --device {device} --precision"
    small = f"{{python}} -m factformer generate kolmogorov_flow {few}-tiny --preset tiny --set num_frames=20"
    return Check(
        "spacing",
        f"{bundle} against its solver, {precision}",
        minutes,
        f"speed/solver_{name}_spaced_h200.json",
        f"{make} --device {{device}} && {bill} {precision} --data {{work}}/bill-{bundle} {bundle}",
        f"{small} && {bill} 32-true --sizes 32 --data {{work}}/bill-tiny kolmogorov-64-small",
    )


def _latency(bundle: str) -> Check:
    """One call of a bundle: as it is and in each exported form."""
    call = "{python} -m benchmarks.export kolmogorov-64-small --device {device} --out {out}"
    return Check(
        "ship",
        f"latency of {bundle}, exported",
        2.5,
        f"speed/export_{bundle}_h200.json",
        call.replace("kolmogorov-64-small", bundle),
        call,
    )


def _emulated(scenario: str, model: str, seed: int = 0) -> Check:
    words = f"{scenario} {model} --seed {seed} --work {{work}}/apebench"
    name = f"{scenario}-{model}" + (f"-seed{seed}" if seed else "")
    minutes = {1: 1.5, 2: 3.0, 3: 3.0}[SCENARIOS[scenario].num_axes]
    found = check("benchmarks", "emulated", f"APEBench, {name}", minutes, f"apebench/{name}.json", words)
    return replace(found, beside=True)


def _in_jax(scenario: str, network: str) -> Check:
    """A network of APEBench, trained by APEBench itself on the same GPU."""
    name = f"{scenario}-jax-{network.replace(';', '-').lower()}"
    minutes = {1: 2.0, 2: 4.0}[SCENARIOS[scenario].num_axes]
    title = f"APEBench's own {network} on {scenario}"
    return check("benchmarks", "jax_networks", title, minutes, f"apebench/{name}.json", f"{scenario} '{network}'")


def _reproduced(targets: str, minutes: float, each: float | None) -> Check:
    length = "" if each is None else f"--minutes {each:g} "
    words = f"{targets} {length}--work {{work}}/paper"
    first, *others = (f"paper/{target}.json" for target in targets.split())
    found = check("paper", "reproduced", f"`reproduce` {targets.replace(' ', ', ')}", minutes, first, words)
    return replace(found, also=tuple(others))


SPEED = "speed/{}_h200.json".format
BODIES = "--work {work}/bodies"
QUEUE: tuple[Check | Runs, ...] = (
    check("house", "speed", "times within 2 % of the stored ones", 2, SPEED("model_now")),
    check("house", "speed", "times beside those of 3f4abe3", 4, SPEED("model_beside"), f"--before {BEFORE}"),
    check("house", "losses", "bf16 losses against commit 3f4abe3", 3, "seeded-losses/h200.json", f"--before {BEFORE}"),
    check("house", "suite", "pytest -m gpu", 4, SPEED("gpu_tests"), "--workers 6"),
    check("conditions", "conditioned", "parameters and masks cost at most 1.10", 2, SPEED("conditioned_last")),
    check(
        "conditions", "conditioned", "the same, two context frames", 2, SPEED("conditioned_two_frames"), "--frames 2"
    ),
    check(
        "domain",
        "ways",
        "kernels in less shared memory, compiled, eager: the other networks",
        2,
        SPEED("ways_more"),
        "--only 'plus, 128² × 4' 'wide, 128² × 4'",
    ),
    _latency("kolmogorov-64-small"),
    _latency("kolmogorov-128"),
    check("house", "narrow", "narrow networks under compute-sanitizer", 6, SPEED("narrow")),
    check(
        "domain",
        "memory_peaks",
        "peaks and times of 192³ to 512³ against the plan",
        3,
        SPEED("memory_more"),
        "--known results/speed/memory_h200.json",
    ),
    Runs("spacing", ("spacing/kolmogorov-128",)),
    Runs("spacing", ("spaced/factformer_plus-3min",)),
    replace(check("conditions", "body_generation", "flow past bodies", 6, SPEED("bodies"), BODIES), beside=True),
    Runs("conditions", ("reynolds",)),
    Runs("conditions", ("steps",)),
    Runs("paper", ("table1",)),
    _reproduced("spectra kernels table4", 8.5, 2.5),
    _reproduced("figure-cost-2d figure-cost-3d", 4, None),
    Runs("spacing", ("spacing/kolmogorov-256", "spacing/turbulence", "spacing/smoke", "spacing/darcy")),
    Runs("spacing", ("spaced/factformer_plus-2min",)),
    Runs("spacing", ("spaced/factformer_plus-12min", "spaced/factformer_plus-15min")),
    _bill("kolmogorov-128", "kolmogorov_flow", 128, "bf16-mixed", 3),
    _bill("kolmogorov-128", "kolmogorov_flow", 128, "32-true", 3),
    _bill("turbulence-60", "isotropic_turbulence", 60, "bf16-mixed", 4),
    _bill("smoke-64", "smoke_buoyancy", 64, "bf16-mixed", 4),
    Runs("benchmarks", ("literature",)),
    *(_emulated(scenario, PLUS) for scenario in SCENARIOS),
    Runs("benchmarks", ("search",)),
    Runs("benchmarks", ("tuned",)),
    *(_emulated(scenario, model) for scenario in SCENARIOS for model in APEBENCH_MODELS if model != PLUS),
    *(
        _emulated(scenario, PLUS, seed)
        for scenario in ("1d_diff_ks_cons", "2d_diff_ks", "2d_diff_burgers")
        for seed in (1, 2)
    ),
    *(_in_jax("1d_diff_ks_cons", network) for network in NETWORKS),
    *(
        _in_jax(scenario, network)
        for scenario in ("2d_diff_ks", "2d_diff_burgers")
        for network in ("Res;26;8;relu", "UNet;12;2;relu", "FNO;12;8;4;gelu")
    ),
    Runs("paper", ("turbulence-large",)),
    Runs("paper", ("smoke-large",)),
    Runs("paper", ("darcy-more",)),
    Runs("paper", ("sizes",)),
    Runs("paper", ("whole-length",)),
)
"""The order: what may be broken first, then what decides recipes, the tables, and the long runs at the end."""


def queue() -> list[Owed]:
    """Everything in order, each file once; what is tuned or spaced follows from the runs that are there."""
    found: dict[str, Owed] = {}
    for item in QUEUE:
        if isinstance(item, Check):
            found.setdefault(item.path, Owed(item.topic, item.title, item.minutes, (item.path, *item.also), item))
            continue
        for entry in _entries(item.names):
            title = " ".join(filter(None, [f"{entry.group}/{entry.name}", f"({entry.title})" if entry.title else ""]))
            minutes = entry.minutes + SECONDS_AROUND / 60
            found.setdefault(entry.path, Owed(item.topic, title, minutes, (entry.path,), entry))
    return list(found.values())


def _entries(names: Sequence[str]) -> list[Entry]:
    """Runs by name; a group that has none yet is no mistake."""
    return find_entries([name for name in names if GROUPS[name.partition("/")[0]]()])


def missing(results: Path, topics: Sequence[str] = ()) -> list[Owed]:
    """What has no file yet."""
    owed = [one for one in queue() if not all((results / path).is_file() for path in one.paths)]
    return [one for one in owed if not topics or one.topic in topics]
