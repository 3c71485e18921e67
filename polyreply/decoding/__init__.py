"""Replies: all K decoders in one pass; beam search, nucleus, min-p and diverse beam search as baselines."""
