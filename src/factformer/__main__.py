"""``python -m factformer``: the same as the command ``factformer``."""

from factformer.cli import main

main()
