"""Servers that the tests of this folder share."""

import pytest
from pair import pair
from servers import serving


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The model folder of a tiny model that uses letters only, so that its replies can be read."""
    path = tmp_path_factory.mktemp("spoken") / "model"
    made = pair()
    names = {number: token.replace("▁", "") for token, number in made.tokenizer.get_vocab().items()}
    made.model.generation_config.suppress_tokens = [
        number for number, name in names.items() if not name.isalpha() and number != made.tokenizer.eos_token_id
    ]
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def server(folder):
    """A real server process with the tiny model of three decoders."""
    with serving("serve", folder, "--port", 0, "--name", "tiny", "--dtype", "float64") as started:
        yield started
