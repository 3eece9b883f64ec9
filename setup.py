"""Everything is in pyproject.toml, but for two things outside of src/: some bundles and the zoo's index."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
BUNDLES = ("kolmogorov-64-small", "kolmogorov-128")
"""Bundles inside the wheel."""


class BuildWithZoo(build_py):
    """Copies these bundles into the package; an editable installation reads them in the checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "factformer" / "zoo" / "bundles"
        files = [ROOT / "zoo" / "index.json", *(file for name in BUNDLES for file in (ROOT / "zoo" / name).iterdir())]
        for file in files:
            copy = target / file.relative_to(ROOT / "zoo")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


setup(cmdclass={"build_py": BuildWithZoo})
