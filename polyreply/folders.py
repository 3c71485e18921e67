"""Output folders that are complete or absent, never half, and never replace what is not ours."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from polyreply.errors import PolyReplyError

_STALE_SECONDS = 24 * 3600


def check_target(out: Path, overwrite: bool, made_by_us: Callable[[Path], bool]) -> None:
    """Raises one clear line when a folder may not be written at `out`."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise PolyReplyError(f"{out}: expected a folder or nothing there, found a file or a link; name another place")
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise PolyReplyError(
            f"{out}: the output folder is not empty; name another one, or say --overwrite to replace it"
        )
    if not made_by_us(out):
        raise PolyReplyError(f"{out}: the folder holds something else than an earlier result, so it is not replaced")


@contextlib.contextmanager
def building(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A scratch folder beside `out`; what is put into its `out` subfolder appears at `out` when all went well."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent) as scratch:
        yield Path(scratch)
        for file in (path for path in Path(scratch, "out").rglob("*") if path.is_file()):
            share(file)
        _move_into_place(Path(scratch) / "out", out, overwrite)


def share(file: Path) -> None:
    """Gives a file the permissions of any new file; some libraries make files that only their owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def _move_into_place(finished: Path, out: Path, overwrite: bool) -> None:
    """Renames; an old folder is put aside first and comes back if the new one cannot take its place."""
    old = out.with_name(f".{out.name}.{time.time_ns()}.old")
    if overwrite and out.exists():
        out.rename(old)
    try:
        finished.rename(out)  # fails if somebody else has filled it meanwhile
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_stale(out: Path) -> None:
    """Removes what killed runs left beside `out`; a fresh scratch folder may be another process at work."""
    for left in out.parent.glob(f".{out.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left)
