"""The command line in this process."""

from __future__ import annotations

import pytest


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command, run in *tmp_path*: (exit code, output, errors)."""
    from ablationlab.cli.app import main

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call
