"""Servers that the tests of this folder share."""

import pytest
from servers import serving


@pytest.fixture(scope="session")
def server(folder):
    """A real server process with the tiny model of three decoders."""
    with serving("serve", folder, "--port", 0, "--name", "tiny", "--dtype", "float64") as started:
        yield started
