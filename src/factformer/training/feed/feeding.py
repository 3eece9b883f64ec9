"""Bringing windows to the device so that the training step never waits for them.

The windows of update u are a function of (seed, u) alone: visits follow one endless list, epoch after epoch,
each epoch in the order `Windows.order(seed, epoch)`. Of the batch of an update, every process takes its own
slots, so the data position of a run is its number of updates and nothing else.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator

import torch
from torch import Tensor

from factformer.batch import Batch, Window
from factformer.data.agreement import require_finite
from factformer.data.dataset import Dataset
from factformer.data.windows import Windows
from factformer.problem import STEP, num_channels
from factformer.training.experiment.config import DataConfig

PREFETCH = 4
MEMORY_SHARE = 0.4
"""Largest part of the free memory of the device that frames may fill; the rest is for training."""
STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Visits:
    """Which windows each update sees, and which of them are this process's."""

    def __init__(self, windows: Windows, seed: int, batch_size: int, *, rank: int = 0, num_ranks: int = 1) -> None:
        self.windows = windows
        self.seed = seed
        self.batch_size = batch_size
        self.rank = rank
        self.num_ranks = num_ranks
        self._epoch = -1
        self._order: list[int] = []

    @property
    def slots(self) -> range:
        """The places in the batch that this process fills."""
        share = self.batch_size // self.num_ranks
        return range(self.rank * share, (self.rank + 1) * share)

    def at(self, update: int) -> list[int]:
        """Window indices of this process at ``update``, counted from 1."""
        first = (update - 1) * self.batch_size
        return [self._index(first + slot) for slot in self.slots]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, len(self.windows))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.windows.order(self.seed, epoch).tolist()
        return self._order[place]


class Feed(ABC):
    """An endless supply of batches, one per update."""

    def __init__(
        self, dataset: Dataset, visits: Visits, device: torch.device, storage: torch.dtype = torch.float32
    ) -> None:
        self.dataset, self.visits, self.device = dataset, visits, device
        self.storage = storage
        """How exactly frames are kept; it decides what is learned, so it is the same wherever they are kept."""

    @abstractmethod
    def batches(self, first_update: int) -> Generator[Window]:
        """The batches of ``first_update`` and all later updates, on the device."""


class ResidentFeed(Feed):
    """All frames live on the device and windows are gathered by index."""

    def __init__(
        self, dataset: Dataset, visits: Visits, device: torch.device, storage: torch.dtype = torch.float32
    ) -> None:
        super().__init__(dataset, visits, device, storage)
        self.frames = _resident(dataset, device, storage)
        self.forcing = _resident(dataset, device, storage, "forcing") if dataset.problem.forcing else None
        everything = slice(None)
        once = [part for part in dataset.problem.parts if part != "forcing"]
        known = Batch(**{part: dataset.read(everything, part=part) for part in once})
        for values in known.tensors:
            require_finite(values, dataset.split, range(dataset.num_trajectories))
        self.known = _stored(known, storage).to(device)
        """What does not depend on the frame."""
        self.offsets = torch.arange(visits.windows.length, device=device)
        self.is_step = torch.tensor([name == STEP for name in dataset.problem.parameters], device=device)

    def batches(self, first_update: int) -> Generator[Window]:
        windows, num_frames, update = self.visits.windows, self.dataset.num_frames, first_update
        while True:
            chosen = [(*windows[index], windows.frame_stride(index)) for index in self.visits.at(update)]
            places = torch.tensor([[trajectory * num_frames + start, apart] for trajectory, start, apart in chosen])
            if self.device.type == "cuda":
                places = places.pin_memory().to(self.device, non_blocking=True)
            yield self.gather(*places.unbind(1))
            update += 1

    def gather(self, starts: Tensor, strides: Tensor) -> Window:
        """The windows that begin at the given places in the list of all frames, of frames ``strides`` apart."""
        where = (starts[:, None] + strides[:, None] * self.offsets).flatten()
        frames = self.frames.index_select(0, where).unflatten(0, (len(starts), -1)).float()
        known, num_frames = self.known, self.dataset.num_frames
        if known.names:
            owners = starts if num_frames == 1 else starts // num_frames
            known = known.map(lambda part: part.index_select(0, owners)).to(torch.float32)
        if known.parameters is not None:
            known = known._replace(parameters=known.parameters * torch.where(self.is_step, strides[:, None], 1))
        if self.forcing is not None:
            forcing = self.forcing.index_select(0, where).unflatten(0, (len(starts), -1)).float()
            known = known._replace(forcing=forcing)
        return Window(frames, known)


class StreamingFeed(Feed):
    """A thread reads the next few batches from the dataset while the device works on this one."""

    def batches(self, first_update: int) -> Generator[Window]:
        ready: queue.Queue[Window | BaseException] = queue.Queue(PREFETCH)
        done = threading.Event()

        def offer(item: Window | BaseException) -> None:
            while not done.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def fill() -> None:
            update = first_update
            try:
                while not done.is_set():
                    offer(self.read(update))
                    update += 1
            except Exception as error:
                offer(error)

        thread = threading.Thread(target=fill, name="window-reader", daemon=True)
        thread.start()
        try:
            while True:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield self._to_device(item)
        finally:
            done.set()
            thread.join()

    def read(self, update: int) -> Window:
        """The batch of ``update`` on the CPU."""
        windows = self.visits.windows
        chosen = [(windows[index][0], windows.frames(index)) for index in self.visits.at(update)]
        window = Window.cat([self.dataset.window([t], frames) for t, frames in chosen])
        for part in (window.frames, *window.known.tensors):
            require_finite(part, self.dataset.split, [t for t, _ in chosen])
        kept = Window(window.frames.to(self.storage), _stored(window.known, self.storage))
        return kept.map(Tensor.pin_memory) if self.device.type == "cuda" else kept

    def _to_device(self, window: Window) -> Window:
        return window.to(self.device, non_blocking=True).to(torch.float32)


def open_feed(dataset: Dataset, visits: Visits, device: torch.device, config: DataConfig) -> Feed:
    """The feed that ``config.residence`` asks for; ``auto`` keeps on the device what fits there."""
    storage = STORAGE[config.storage]
    fits = _size(dataset, storage) <= MEMORY_SHARE * free_memory(device)
    if config.residence == "device" or (config.residence == "auto" and fits):
        return ResidentFeed(dataset, visits, device, storage)
    return StreamingFeed(dataset, visits, device, storage)


def free_memory(device: torch.device) -> int:
    """Free bytes on a GPU, or of the computer's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(dataset: Dataset, storage: torch.dtype) -> int:
    problem = dataset.problem
    per_frame = problem.num_state_channels + problem.num_forcing_channels
    values = dataset.num_trajectories * (dataset.num_frames * per_frame + problem.num_static_channels)
    masks = dataset.num_trajectories if problem.masked else 0
    return problem.grid.num_points * (values * storage.itemsize + masks)


def _resident(dataset: Dataset, device: torch.device, storage: torch.dtype, part: str = "state") -> Tensor:
    """All frames of a split on the device, one trajectory at a time so that memory never holds them twice."""
    held = dataset.resident(device, storage) if part == "state" else None
    if held is not None:
        return held.flatten(0, 1)
    problem = dataset.problem
    channels = num_channels(getattr(problem, part))
    shape = (dataset.num_trajectories, dataset.num_frames, *problem.grid.shape, channels)
    frames = torch.empty(shape, dtype=storage, device=device)
    for index in range(dataset.num_trajectories):
        values = dataset.read([index], part=part)[0]
        require_finite(values[None], dataset.split, [index])
        frames[index].copy_(values)
    return frames.flatten(0, 1)


def _stored(known: Batch, storage: torch.dtype) -> Batch:
    """Fields in the format that frames are kept in; parameters are few and stay as exact as they are."""
    fields = known._replace(parameters=None).to(storage)
    return fields._replace(parameters=known.parameters)
