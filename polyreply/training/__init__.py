"""Training runs: `loop.train` and its parts, one in each file: recipe, set-up, state, checkpoints, validation, view."""
