"""Training runs: their recipe, their state on disk, and what a person sees of them while they go on."""
