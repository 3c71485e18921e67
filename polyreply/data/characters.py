"""The characters of a column of texts, counted by class with table look-ups instead of a regex match for each one."""

import unicodedata

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CJK = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}"
"""Scripts written without spaces between words, as part of a regex: each character counts as a word there."""

LETTER, LETTER_OF_A_SCRIPT, SIGN, SPACE, LATIN, HAN, UNSPACED = (1 << bit for bit in range(7))
"""Classes: letter, digit or mark; letter; sign that is not plain punctuation; white space; Latin letter; Chinese
character; character of a script in CJK."""

_PLAIN_PUNCTUATION = ".,!?'\"…。，！？、-"
_HAN = ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_OTHER_UNSPACED = ((0x1100, 0x11FF), (0x3040, 0x30FF), (0x3130, 0x318F), (0x31F0, 0x31FF), (0xAC00, 0xD7AF))
_LATIN = ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xFF21, 0xFF5A))


class Characters:
    """All characters of all texts in one array of code points; text n is codes[starts[n]:ends[n]]."""

    def __init__(self, texts: pa.Array) -> None:
        """Decodes the column's own buffer, in one piece."""
        lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "")
        self.codes = np.frombuffer(joined[0].as_buffer().to_pybytes().decode().encode("utf-32-le"), np.uint32)

    def owner(self) -> npt.NDArray[np.int64]:
        """For each character, the number of its text."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)

    def count(self, wanted: int) -> npt.NDArray[np.int64]:
        """How many characters of a class each text has."""
        return self._sums(_classes(self.codes) & wanted != 0)

    def words(self) -> npt.NDArray[np.int64]:
        """How many words each text has: runs between white space, and single characters of unspaced scripts."""
        classes = _classes(self.codes)
        alone = classes & UNSPACED != 0
        inside = classes & (UNSPACED | SPACE) == 0
        begins = inside.copy()
        begins[1:] &= ~inside[:-1]
        first = self.starts[self.ends > self.starts]
        begins[first] = inside[first]
        return self._sums(alone | begins)

    def _sums(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        total = np.r_[0, np.cumsum(flags, dtype=np.int64)]
        return np.asarray(total[self.ends] - total[self.starts])


_UNKNOWN = 255
_table = np.full(0x110000, _UNKNOWN, np.uint8)
"""The classes of the code points met so far, as bits."""


def _classes(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """The classes of each character."""
    found = _table[codes]
    new = found == _UNKNOWN
    if new.any():
        for code in np.unique(codes[new]):
            _table[code] = _class(int(code))
        found = _table[codes]
    return found


def _class(code: int) -> int:
    character, flags = chr(code), 0
    category = unicodedata.category(character)[0]
    if category in "LNM":
        flags |= LETTER
    elif character.isspace():
        flags |= SPACE
    elif character not in _PLAIN_PUNCTUATION:
        flags |= SIGN
    if category == "L":
        flags |= LETTER_OF_A_SCRIPT
        for ranges, flag in ((_HAN, HAN | UNSPACED), (_OTHER_UNSPACED, UNSPACED), (_LATIN, LATIN)):
            if any(low <= code <= high for low, high in ranges):
                flags |= flag
    return flags
