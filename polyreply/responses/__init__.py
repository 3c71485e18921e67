"""Batch generation: a dialogue file in, a responses file out, on one or several processes, resumable."""
