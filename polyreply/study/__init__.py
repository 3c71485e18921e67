"""Blind human evaluation: people compare the responses of two systems and choose the better one, or neither.

`create.py` samples, pairs and blinds; `folder.py` is what a study folder holds; `server.py` shows one comparison at a
time and keeps every answer in `answers.py`; `results.py` counts, tests and ranks. Nothing here imports torch.
"""
