"""Files appear whole or not at all."""

import pytest

from polyreply.files import write_files


def test_several_files_are_written_together_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        write_files({tmp_path / "a": b"1", tmp_path / ("b" * 300): b"2"})
    assert not list(tmp_path.iterdir())
    write_files({tmp_path / "a": b"1", tmp_path / "new" / "b": b"2"})
    assert [path.read_bytes() for path in (tmp_path / "a", tmp_path / "new" / "b")] == [b"1", b"2"]
