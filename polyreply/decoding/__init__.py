"""Replies: all K decoders in one pass; beam search, nucleus sampling and diverse beam search as baselines."""
