import sys

import numpy as np
import pytest

from polyreply.bench.timing import command_cost
from polyreply.errors import PolyReplyError


def test_a_commands_peak_leaves_out_the_memory_of_the_process_that_starts_it():
    ballast = np.ones(400 << 17)  # 400 MB
    seconds, peak = command_cost((sys.executable, "-c", "held = b'x' * (150 << 20)"))
    assert ballast.nbytes >> 20 == 400
    assert 150 < peak < 300
    assert 0 < seconds < 60


def test_a_failing_command_reports_its_errors():
    with pytest.raises(PolyReplyError, match="no such luck"):
        command_cost((sys.executable, "-c", "raise SystemExit('no such luck')"))
