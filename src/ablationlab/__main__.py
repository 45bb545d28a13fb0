"""``python -m ablationlab`` is the command line."""

from ablationlab.cli import main

if __name__ == "__main__":
    main()
