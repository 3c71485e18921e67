"""Servers that the tests of this folder share."""

import pytest
from pair import pair
from servers import serving


def _save(path, *, ends):
    """Save a tiny model that uses letters only, so that its replies can be read; its replies end by themselves or not."""
    made = pair()
    eos = made.tokenizer.eos_token_id
    names = {number: token.replace("▁", "") for token, number in made.tokenizer.get_vocab().items()}
    made.model.generation_config.suppress_tokens = [
        number for number, name in names.items() if not (name.isalpha() or (ends and number == eos))
    ]
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of a tiny model with three decoders."""
    return _save(tmp_path_factory.mktemp("spoken") / "model", ends=True)


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The same without an end of sequence: replies are as long as they may be."""
    return _save(tmp_path_factory.mktemp("endless") / "model", ends=False)


@pytest.fixture(scope="session")
def server(folder):
    """A real server process with the tiny model of three decoders."""
    with serving("serve", folder, "--port", 0, "--name", "tiny", "--dtype", "float64") as started:
        yield started
