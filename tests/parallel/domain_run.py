"""A training that Fabric starts once per process: FOLDER DEVICES DOMAIN MODEL [resume] [stop]."""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import torch
from small_waves import tiny_experiment, wave_data

from factformer.training import Machine
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter

SETTINGS = {"updates": 10, "batch_size": 4, "log_every": 1, "checkpoint_every": 3, "validate_every": 5, "noise": 0.01}


class StopsAtFour(Reporter):
    """Asks the run to stop after its fourth update."""

    def line(self, values, seconds_waiting):
        if values["update"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    folder, devices, domain, model, *flags = sys.argv[1:]
    torch.set_num_threads(1)
    sizes = {} if model == "dilated_resnet" else {"heads": 2, "head_dim": 4, "kernel_dim": 4}
    config = {"name": model, "dim": 8, "depth": 1, **sizes}
    experiment = tiny_experiment(**SETTINGS).override([f"model={json.dumps(config)}"])
    machine = Machine("cpu", int(devices), domain=int(domain))
    reporter = StopsAtFour() if "stop" in flags else None
    train(experiment, *wave_data(), folder=folder, machine=machine, resume="resume" in flags, reporter=reporter)


if __name__ == "__main__":
    main()
