"""The command line: one file per group of verbs, `app` with the command itself, `torchrun` for ranks.

Heavy imports happen inside the verbs that need them, so `--help` is fast.
"""

from ablationlab.cli.stopping import stops_with_a_message


def main(arguments: list[str] | None = None) -> None:
    """The command `ablationlab`, from its first import on."""
    with stops_with_a_message():
        from ablationlab.cli.app import main as run_verb

        run_verb(arguments)
