"""Reproduces the paper: cached tasks from raw data to scores, and one file for each table and figure.

Only `polyreply reproduce` uses this package; the rest of the library works without it.
"""
