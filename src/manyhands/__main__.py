"""Makes `python -m manyhands` the same as the `manyhands` command."""

from manyhands.cli import main

if __name__ == "__main__":
    main()
