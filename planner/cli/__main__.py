"""`python -m planner.cli` is the `planner` command."""

from planner.cli import main

if __name__ == "__main__":
    main()
