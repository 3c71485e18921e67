"""`python -m polyreply`, for launchers that start modules."""

from polyreply.cli.main import run

run()
