"""``python -m ablationlab`` is the command line."""

from ablationlab.cli.app import main

if __name__ == "__main__":
    main()
