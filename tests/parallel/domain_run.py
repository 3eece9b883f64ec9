"""A training that Fabric starts once per process: FOLDER DEVICES DOMAIN MODEL [resume] [stop] [dies].

With ``dies`` the second process is killed after the fourth update, while the first one waits for it in a sum.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import torch
from small_waves import tiny_experiment, wave_data

from factformer.cli import describe
from factformer.parallel.groups import ProcessGroup
from factformer.training import Machine
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter

SETTINGS = {"updates": 10, "batch_size": 4, "log_every": 1, "checkpoint_every": 3, "validate_every": 5, "noise": 0.01}


class StopsAtFour(Reporter):
    """Asks the run to stop after its fourth update."""

    def line(self, values, seconds_waiting):
        if values["update"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)


def die_in_a_sum(folder: Path) -> None:
    """The second process ends in the middle of an exchange."""
    reduced = ProcessGroup.reduced

    def last(self, x, *, largest=False):
        log = folder / "metrics.jsonl"
        if log.is_file() and len(log.read_text(encoding="utf-8").splitlines()) >= 4:
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return reduced(self, x, largest=largest)

    ProcessGroup.reduced = last


def main() -> None:
    folder, devices, domain, model, *flags = sys.argv[1:]
    torch.set_num_threads(1)
    sizes = {} if model == "dilated_resnet" else {"heads": 2, "head_dim": 4, "kernel_dim": 4}
    config = {"name": model, "dim": 8, "depth": 1, **sizes}
    experiment = tiny_experiment(**SETTINGS).override([f"model={json.dumps(config)}"])
    machine = Machine("cpu", int(devices), domain=int(domain))
    reporter = StopsAtFour() if "stop" in flags else None
    if "dies" in flags and os.environ.get("LOCAL_RANK") == "1":
        die_in_a_sum(Path(folder))
    try:
        train(experiment, *wave_data(), folder=folder, machine=machine, resume="resume" in flags, reporter=reporter)
    except Exception as error:  # as the command line says it
        code, line = describe(error)
        print(line, file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
