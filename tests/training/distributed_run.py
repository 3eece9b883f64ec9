"""A script that Fabric starts once per process: FOLDER STRATEGY DEVICES [resume] [slow] [SETTING …]."""

import faulthandler
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from small_waves import tiny_experiment, wave_data

from factformer.training import Machine
from factformer.training.loop.train import train
from factformer.training.runfolder.reporting import Reporter

UPDATES = 12
STUCK = 100
"""Seconds after which a run of some seconds is taken to hang."""


class Slow(Reporter):
    """Leaves time between updates for someone to kill a process."""

    def line(self, values, seconds_waiting):
        time.sleep(0.2)


def main() -> None:
    folder, strategy, devices, *flags = sys.argv[1:]
    faulthandler.dump_traceback_later(STUCK, exit=True)  # a process that hangs says where
    torch.set_num_threads(1)
    rank = os.environ.get("LOCAL_RANK", "0")
    Path(f"{folder}.{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
    experiment = tiny_experiment(updates=UPDATES, batch_size=4, log_every=1, checkpoint_every=3, validate_every=6)
    experiment = experiment.override([flag for flag in flags if "=" in flag])
    machine = Machine("cpu", int(devices), strategy=strategy)
    reporter = Slow() if "slow" in flags else None
    train(experiment, *wave_data(), folder=folder, machine=machine, resume="resume" in flags, reporter=reporter)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
