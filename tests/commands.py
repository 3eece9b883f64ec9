"""Commands as a user types them, in this process."""

import pytest

from factformer.cli import main


def run(capsys, *words):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    return stopped.value.code or 0, printed.out, printed.err
