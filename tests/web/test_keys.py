import stat

import pytest

from polyreply.errors import PolyReplyError
from polyreply.web.keys import Keys, add_key, digest, same_secret


def test_a_file_holds_digests_and_knows_owners(tmp_path):
    path = tmp_path / "keys"
    first, second = add_key(path, "ann"), add_key(path, "bob")
    keys = Keys.read(path)
    assert (keys.owner(first), keys.owner(second)) == ("ann", "bob")
    assert keys.owner(first[:-1]) is None and keys.owner("") is None and keys.owner("\ud800") is None
    assert first not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert same_secret(first, digest(first)) and not same_secret(second, digest(first))


@pytest.mark.parametrize("text", ["", "# none\n", "ann secret\n", "ann sha256:12\n", f"a sha256:{'0' * 64}\n" * 2])
def test_a_file_that_is_not_one_of_keys(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(PolyReplyError):
        Keys.read(path)


def test_names_are_unique_and_plain(tmp_path):
    add_key(tmp_path / "keys", "ann")
    for name in ("ann", "a b", ""):
        with pytest.raises(PolyReplyError):
            add_key(tmp_path / "keys", name)
