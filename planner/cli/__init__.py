"""The `planner` command: it parses, calls and prints; it computes nothing. `main` is its entry point."""

from planner.cli.commands import main
