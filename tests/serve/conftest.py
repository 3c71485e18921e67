"""Servers that the tests of this folder share."""

import pytest
from pair import pair
from servers import serving


def _save(path, *, ends):
    """Save a tiny model whose replies are letters, at least three tokens long; they end by themselves or not."""
    made = pair(num_decoders=10)
    eos = made.tokenizer.eos_token_id
    names = {number: token.replace("▁", "") for token, number in made.tokenizer.get_vocab().items()}
    made.model.generation_config.suppress_tokens = [
        number for number, name in names.items() if not (name.isalpha() or (ends and number == eos))
    ]
    made.model.generation_config.min_new_tokens = 3
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of a tiny model with ten decoders."""
    return _save(tmp_path_factory.mktemp("spoken") / "model", ends=True)


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The same without an end of sequence: replies are as long as they may be."""
    return _save(tmp_path_factory.mktemp("endless") / "model", ends=False)


@pytest.fixture(scope="session")
def server(folder):
    """A real server process with that model."""
    with serving("serve", folder, "--port", 0, "--name", "tiny", "--dtype", "float64") as started:
        yield started
