"""Replies: all K decoders in one pass; beam search, nucleus, top-k, min-p and diverse beam search as baselines."""
