"""Tokenizers: train one for a backbone built from scratch, load any other, and tell whether two are the same."""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polyreply.data.dialogue import BadRows
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError
from polyreply.files import check_new_folder, new_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, EOS, UNK, TURN = SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>", "<turn>")
"""The first ids of a tokenizer trained here, in T5's order, and the separator between turns."""

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
PUNCTUATION = r"▁?[^\w\s'’▁]+"
"""A run of punctuation is a separate word; an apostrophe stays inside its word."""
MARK = "ꙮ"
"""A letter that hardly any text has; where a text has it, it becomes bytes."""


def train_tokenizer(
    texts: Iterable[str], *, kind: Literal["unigram", "bpe"] = "unigram", vocab_size: int = 8000
) -> "PreTrainedTokenizerFast":
    """Train a tokenizer of at most `vocab_size` pieces, in English, Chinese or any other script.

    Text is NFKC-normalised, and decoding an encoded text gives the normalised text back: no space appears or
    disappears, and a character never seen in training becomes bytes that decode to it. `</s>` is appended as
    T5 does. The same texts give the same vocabulary. (The one sign not given back is "▁", the tokenizer's
    own mark for a space; it becomes a space.)
    """
    import transformers

    trainers = {"unigram": _train_unigram, "bpe": _train_byte_bpe}
    if kind not in trainers:
        raise DataError(f"a tokenizer's kind is 'unigram' or 'bpe', not {kind!r}")
    if vocab_size < len(SPECIAL_TOKENS) + len(BYTE_PIECES):
        raise DataError(f"vocab_size {vocab_size} has no room for 4 special tokens and 256 bytes; use 1000 or more")
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(  # type: ignore[no-any-return]
        tokenizer_object=_finish(trainers[kind](texts, vocab_size)),
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        extra_special_tokens=[TURN],
        clean_up_tokenization_spaces=False,
    )


def _finish(tokenizer: "Tokenizer") -> "Tokenizer":
    """Declare the special tokens and append `</s>` to every text."""
    from tokenizers import AddedToken, processors

    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, SPECIAL_TOKENS.index(EOS))]
    )
    return tokenizer


def _watched(texts: Iterable[str], normalise: Callable[[str], str], seen: set[str]) -> Iterator[str]:
    """Pass texts on to a trainer, collecting the characters that it will see."""
    for text in texts:
        seen.update(normalise(text))
        yield text


def _with_marked_words(texts: Iterable[str], split: Callable[[str], list[str]]) -> Iterator[str]:
    """Pass texts on, and then each repeated word once more, with a mark behind it.

    The unigram trainer considers only pieces that are part of two different words, so "going" would never be
    one: with "goingꙮ" it can be. One occurrence more does not matter to what it then chooses.
    """
    words: Counter[str] = Counter()
    for text in texts:
        words.update(split(text))
        yield text
    yield from (word.removeprefix("▁") + MARK for word, count in words.items() if count > 1)


def _train_unigram(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """Train a unigram language model over words marked by a leading "▁", with byte fallback."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Split(Regex(PUNCTUATION), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size - len(BYTE_PIECES) + len(MARK),
        special_tokens=list(SPECIAL_TOKENS),
        unk_token=UNK,
        show_progress=False,
    )
    normalise, pre_tokenise = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str

    def split(text: str) -> list[str]:  # not by way of the tokenizer, which is locked while it trains
        return [word for word, _ in pre_tokenise(normalise(text))]

    _train(tokenizer, trainer, _with_marked_words(texts, split))
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"][len(SPECIAL_TOKENS) :]
    pieces = [(piece, score) for piece, score in pieces if MARK not in piece]
    vocab = [(token, 0.0) for token in SPECIAL_TOKENS] + _with_bytes(_in_fixed_order(pieces))
    tokenizer.model = models.Unigram(vocab, unk_id=SPECIAL_TOKENS.index(UNK), byte_fallback=True)
    return tokenizer


def _train(tokenizer: "Tokenizer", trainer: Any, texts: Iterable[str]) -> None:
    """Train on texts that hold something."""
    seen: set[str] = set()
    try:
        tokenizer.train_from_iterator(_watched(texts, tokenizer.normalizer.normalize_str, seen), trainer)
    except Exception as error:
        if "not large enough to contain all chars" not in str(error):
            raise
        characters = len(seen - {MARK})
        least = len(SPECIAL_TOKENS) + len(BYTE_PIECES) + characters
        raise DataError(
            f"expected a vocab_size of {least} or more for {characters} different characters, 256 bytes and 4 "
            f"special tokens, found {trainer.vocab_size + len(BYTE_PIECES) - len(MARK)}; raise it, or "
            "use kind='bpe', which needs no room for characters"
        ) from error
    if not seen - {" ", MARK}:
        raise DataError("a tokenizer needs text to train on, and found none; give it at least one sentence")


def _in_fixed_order(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Undo what varies from one training to the next: the last digits, ties, and the trainer's spare scores.

    A character that lost its own score in pruning is given back by the trainer at the lowest score plus
    multiples of 0.0001, in the order of a hash table: all of them get the lowest score here.
    """
    lowest = min(score for _, score in pieces)
    spare = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    fixed = [(piece, round(lowest if len(piece) == 1 and score <= spare else score, 6)) for piece, score in pieces]
    return sorted(fixed, key=lambda entry: (-entry[1], entry[0]))


def _with_bytes(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Add the byte pieces. The text "<0x41>" is not taken for one: punctuation is split from letters before."""
    lowest = min(score for _, score in pieces)
    return pieces + [(piece, lowest) for piece in BYTE_PIECES]


def _train_byte_bpe(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """Train byte-pair encoding over bytes: nothing is unknown to it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _train(tokenizer, trainer, texts)
    return tokenizer


def texts_of(path: Path, most: int = 50_000) -> Iterator[str]:
    """The turns and responses of a dialogue file, at most so many, to train a tokenizer on.

    In a conversation the answer of one dialogue is the context of the next; it is given once.
    """

    def texts() -> Iterator[str]:
        before: tuple[str, ...] = ()
        bad_rows = BadRows(strict=True, advice="fix the row, or clean the file with `polyreply prepare`")
        for dialogue in read_dialogues(path, bad_rows=bad_rows):
            yield from (turn for turn in dialogue.context if turn not in before)
            yield from dialogue.responses
            before = dialogue.context + dialogue.responses

    return islice(texts(), most)


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", out: Path, *, overwrite: bool = False) -> None:
    """Save a tokenizer into a folder that is complete or absent; `overwrite` replaces an earlier tokenizer only."""
    check_tokenizer_target(out, overwrite)
    with new_folder(out, overwrite) as scratch:
        tokenizer.save_pretrained(scratch / "out")


def check_tokenizer_target(out: Path, overwrite: bool = False) -> None:
    """Raise, before any work, if a tokenizer may not be saved there."""
    check_new_folder(out, overwrite, made_by_us=lambda folder: (folder / "tokenizer.json").is_file())


def load_tokenizer(name_or_folder: str | Path, *, revision: str | None = None) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a Hugging Face model by its name (and revision), or one saved in a folder."""
    from transformers import AutoTokenizer

    name = str(name_or_folder)
    looks_like_folder = isinstance(name_or_folder, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_folder and not Path(name).is_dir():  # else the hub would be asked for it, with many retries
        raise DataError(f"no tokenizer at {name}: expected a folder with a tokenizer.json; check the path")
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision or "main", trust_remote_code=False)
    except Exception as error:  # a missing file, a missing network and a broken JSON all raise their own kind
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot load a tokenizer from {name!r}: expected a folder with a tokenizer.json or a Hugging "
            f"Face model that is downloaded or can be, found: {reason}"
        ) from error


def fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Hash everything that decides which ids a text becomes, and nothing else.

    Truncation and padding are left out: callers switch them off (and the tokenizer's own calls change them).
    """
    digest = hashlib.sha256()
    for part in (_backend_text(tokenizer), tokenizer.special_tokens_map, tokenizer.chat_template):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _backend_text(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """Give the model, its normaliser and its added tokens in a form to hash."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}
    with tempfile.TemporaryDirectory() as folder:  # a tokenizer written in Python: hash what it would save
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes().hex() for path in sorted(Path(folder).rglob("*")) if path.is_file()}
