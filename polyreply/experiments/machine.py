"""The machine that made something, in words."""

import os
import platform
from pathlib import Path


def machine() -> dict[str, str]:
    """What decides how fast this process is, and whose arithmetic it uses."""
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return {
        "processor": _processor(),
        "cores": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": device,
        "system": platform.platform(terse=True),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
