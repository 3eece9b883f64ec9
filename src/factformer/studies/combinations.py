"""What a user's study is: recipes × models × protocols × settings × seeds, each trained equally long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, field_validator, model_validator

from factformer import catalog, recipes
from factformer._support.documents import read_yaml
from factformer.config import Config
from factformer.errors import UserError
from factformer.models import find_model
from factformer.protocols import config_class
from factformer.studies.cells import Scale, Training
from factformer.studies.own_data import held_out_split, own_experiment
from factformer.studies.scales import experiment_of
from factformer.training.experiment.definition import Experiment

MOST_RUNS = 10_000
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=1000)]


class Study(Config):
    """A study as its file says it; every combination is trained and judged on the same data."""

    recipes: Names = ()
    data: Annotated[str, Field(max_length=4096)] = ""
    """Instead of recipes: a folder of one's own data with train.hdf5 and test.hdf5, or valid.hdf5."""
    models: Names = ()
    """By default the model of each recipe; for one's own data `factformer_plus`."""
    protocols: Names = ()
    """By default the protocol of each recipe."""
    settings: Annotated[dict[str, tuple[str, ...]], Field(max_length=1000)] = Field(default_factory=dict)
    """Variants by name, each a list of ``section.key=value``; by default one without changes."""
    seeds: Annotated[int, Field(ge=1, le=1000)] | Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000)] = 1
    """How many seeds, counted from 0, or the seeds themselves."""
    budget_minutes: float | None = Field(None, gt=0, le=10**6)
    """Minutes of training of each run."""
    updates: int | None = Field(None, ge=1, le=10**9)
    """Updates of each run."""
    scale: Scale = "small"
    resolution: int | None = Field(None, ge=2, le=2**16)
    """Points per axis; by default those of the recipe's dataset."""
    plugins: Names = ()
    """Python files with models or PDEs of one's own."""

    @field_validator("data")
    @classmethod
    def _whole_path(cls, value: str) -> str:
        return str(Path(value).expanduser().resolve()) if value else ""

    @model_validator(mode="after")
    def _one_source(self) -> Study:
        if bool(self.recipes) == bool(self.data):
            raise ValueError("a study needs recipes, or data of one's own: give one of them")
        if self.data and (self.scale != "small" or self.resolution is not None):
            raise ValueError("scale and resolution are for recipes: leave them out with data of one's own")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Study:
        if self.budget_minutes is not None and self.updates is not None:
            raise ValueError("runs are compared at equal minutes or at equal updates: give one of them")
        for name, values in (("recipes", self.recipes), ("models", self.models), ("protocols", self.protocols)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names one of them twice: {', '.join(values)}")
        return self

    @classmethod
    def read(cls, path: Path) -> Study:
        """The study of a YAML file; a mistake is one line that names the file."""
        values = read_yaml(path)
        if not isinstance(values, Mapping):
            raise UserError(f"{path} should hold a study: recipes, models, seeds and so on")
        try:
            return cls.parse(values)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True)

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def groups(self) -> list[Group]:
        """The rows of the table: everything but the seed."""
        variants = self.settings or {"": ()}
        found = []
        length = [] if self.updates is None else [f"training.updates={self.updates}"]
        names = self.recipes or (Path(self.data).name,)
        for recipe, model, protocol, variant in product(
            names, self.models or (None,), self.protocols or (None,), variants
        ):
            base = self._base(recipe, model)
            chosen = (model or base.model.name, protocol or base.protocol.name)
            assignments = (*variants[variant], *length)
            found.append(Group(recipe, *chosen, variant, assignments, self.resolution, self.data))
        if len(found) * len(self.seed_numbers) > MOST_RUNS:
            raise UserError(f"the study asks for more than {MOST_RUNS:,} runs; leave out some values")
        return found

    def _base(self, recipe: str, model: str | None) -> Experiment:
        """What says the model and the protocol where the study does not."""
        if self.data:
            return own_experiment(Training(recipe, model or "", "", data=self.data), minutes=None)
        return recipes.build(recipe, "paper" if self.scale in ("paper", "reduced") else "small")

    def trainings(self) -> list[Training]:
        """Every run: group by group, the seeds of a group one after the other."""
        return [group.training(seed) for group in self.groups() for seed in self.seed_numbers]

    def check(self) -> None:
        """Raise where a run cannot be built, before the first one begins."""
        for recipe in self.recipes:
            catalog.find("recipes", recipe)
        for model in self.models:
            find_model(model)
        for protocol in self.protocols:
            config_class(protocol)
        if self.data:
            held_out_split(self.data)
        for group in self.groups():
            try:
                experiment_of(group.training(self.seed_numbers[0]), self.scale, "data", minutes=self.budget_minutes)
            except UserError as error:
                raise UserError(f"{group.label}: {error}") from None


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone."""

    recipe: str
    model: str
    protocol: str
    variant: str
    assignments: tuple[str, ...]
    resolution: int | None
    data: str = ""

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.recipe, self.model, self.protocol, self.variant) if part)

    def training(self, seed: int) -> Training:
        """The run of one seed."""
        settings = (*self.assignments, f"training.seed={seed}")
        return Training(self.recipe, self.model, self.protocol, self.resolution, settings, self.data)
