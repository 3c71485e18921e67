"""A program that has imported the study's server, and forks one for each line `FOLDER PORT` on standard input.

A fork starts in milliseconds and can be killed as any process; its process id is in the line `forked ID`, and it
prints its own `listening on URL`. There is one at a time: the next one waits until the last one has ended.
"""

import os
import sys
from pathlib import Path

import polyreply.study.results  # noqa: F401
from polyreply.study.server import create_study_app
from polyreply.web.server import bind, serve

if __name__ == "__main__":
    assert "torch" not in sys.modules, "a study's server starts without torch"
    process = 0
    for line in sys.stdin:
        if process:
            os.waitpid(process, 0)
        folder, port = line.rsplit(" ", 1)
        bound = bind("127.0.0.1", int(port))
        process = os.fork()
        if process == 0:
            serve(create_study_app(Path(folder)), bound)
            os._exit(0)
        bound.close()
        print(f"forked {process}", flush=True)
