"""Tokenizers: read from a file or the hub, or trained; and what the pre-training needs to know of a vocabulary."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiejax.data.corpus import CorpusError, first_line, reachable

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_OF_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# How byte-level BPE and SentencePiece write the space before a word.
SPACES = ("\u0120", "\u2581")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The pieces of a tokenizer, by id, and the ids of the special ones.

    size: ids are 0 .. size - 1. pieces: `pieces[id]`; empty where no piece has an id. space: what stands before a piece
    that begins a word.
    """

    size: int
    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    pieces: tuple[str, ...]
    space: str = ""

    @property
    def special(self) -> tuple[int, ...]:
        """The ids (pad, unknown, cls, sep, mask)."""
        return self.pad, self.unknown, self.cls, self.sep, self.mask

    def id_of(self, word: str) -> int | None:
        """Return the id of the piece that begins a word and is `word`, letter by letter; None if there is none."""
        return self._ids.get(self.space + word) if word else None

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self.pieces)}


def load(name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer in a vocab.txt (BERT's, one piece a line, lower-cased), a tokenizer.json, or of a hub name.

    It neither pads nor truncates, and special pieces spelled out in a text are text. Raises CorpusError.
    """
    path = Path(name)
    try:
        if path.is_file():
            tokenizer = _from_json(path, name) if path.suffix == ".json" else _from_lines(path, name)
        elif path.is_dir():
            raise CorpusError(f"--tokenizer {name}: is a folder; name the tokenizer.json or vocab.txt in it")
        elif path.suffix in (".json", ".txt") or path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise CorpusError(f"--tokenizer {name}: there is no such file")
        else:
            tokenizer = _from_hub(name)
    except OSError as error:
        raise CorpusError(f"--tokenizer {name}: cannot be read: {error.strerror or error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _from_json(path: Path, name: str) -> tokenizers.Tokenizer:
    content = path.read_bytes()
    try:
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    # The parser of tokenizers raises plain Exception.
    except Exception as error:
        raise CorpusError(f"--tokenizer {name}: is no tokenizer.json: {first_line(error)}") from None


def _from_lines(path: Path, name: str) -> tokenizers.Tokenizer:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"--tokenizer {name}: byte {error.start} is not UTF-8") from None
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines):
        piece = line.removesuffix("\r")
        if not piece or piece in vocab:
            what = f"repeats {piece}" if piece else "is empty"
            raise CorpusError(f"--tokenizer {name}: line {number + 1} {what}; a vocabulary has one piece a line, each once")
        vocab[piece] = number
    return _bert(vocab)


def _from_hub(name: str) -> tokenizers.Tokenizer:
    from huggingface_hub import constants, errors, hf_hub_download

    online = not constants.HF_HUB_OFFLINE and reachable(constants.ENDPOINT)
    try:
        return _from_json(Path(hf_hub_download(name, "tokenizer.json", local_files_only=not online)), name)
    except errors.LocalEntryNotFoundError:
        where = constants.ENDPOINT.split("//")[-1]
        raise CorpusError(
            f"--tokenizer {name}: there is no such file, and {where} does not answer to look the name up there"
        ) from None
    except errors.HFValidationError:
        raise CorpusError(f"--tokenizer {name}: there is no such file, and it is no name of the hub") from None
    except errors.RepositoryNotFoundError:
        raise CorpusError(f"--tokenizer {name}: there is no such file, and no such name on the hub") from None
    except errors.EntryNotFoundError:
        raise CorpusError(f"--tokenizer {name}: has no tokenizer.json on the hub; name its vocab.txt instead") from None
    except errors.HfHubHTTPError as error:
        raise CorpusError(f"--tokenizer {name}: the hub refuses: {first_line(error)}") from None


def train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Return a lower-cased WordPiece tokenizer, as BERT's, with at most `vocab_size` pieces, trained on these texts.

    The same texts give different pieces from run to run: store it. Raises CorpusError if the letters need more pieces.
    """
    tokenizer = _bert({})
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL), show_progress=False)
    )
    if tokenizer.get_vocab_size() > vocab_size:
        least = tokenizer.get_vocab_size()
        raise CorpusError(
            f"--vocab_size {vocab_size}: the letters of this corpus and the special pieces alone are {least} pieces"
        )
    _frame(tokenizer)
    return tokenizer


def _bert(vocab: dict[str, int]) -> tokenizers.Tokenizer:
    unknown = "<unk>" if "<unk>" in vocab and "[UNK]" not in vocab else "[UNK]"
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.encode_special_tokens = True
    _frame(tokenizer)
    return tokenizer


def _frame(tokenizer: tokenizers.Tokenizer) -> None:
    """Let a stored tokenizer.json frame sentences for whoever else loads it, as BERT does."""
    special = {piece: index for piece, index in _special(tokenizer).items() if index is not None}
    if len(special) == len(SPECIAL):
        tokenizer.add_special_tokens(list(special))
        _, _, cls, sep, _ = special.items()
        tokenizer.post_processor = processors.BertProcessing(sep, cls)


def _special(tokenizer: tokenizers.Tokenizer) -> dict[str, int | None]:
    spellings: Sequence[Sequence[str]] = (SPECIAL, SPECIAL_OF_ROBERTA)
    found = [{piece: tokenizer.token_to_id(piece) for piece in spelling} for spelling in spellings]
    return min(found, key=lambda ids: list(ids.values()).count(None))


def vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer; raises CorpusError that names the special pieces it lacks."""
    special = _special(tokenizer)
    if missing := [piece for piece, index in special.items() if index is None]:
        raise CorpusError(f"--tokenizer: its vocabulary has no {', '.join(missing)}; masked pieces cannot be predicted without")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values()) + 1
    pieces = [""] * size
    for piece, index in ids.items():
        pieces[index] = piece
    pad, unknown, cls, sep, mask = (index for index in special.values() if index is not None)
    return Vocabulary(size, pad, unknown, cls, sep, mask, tuple(pieces), _space(tokenizer, pieces))


def _space(tokenizer: tokenizers.Tokenizer, pieces: Sequence[str]) -> str:
    # To WordPiece both marks are letters as any other.
    if not isinstance(tokenizer.model, models.BPE | models.Unigram):
        return ""
    counts = {mark: sum(piece.startswith(mark) for piece in pieces) for mark in SPACES}
    mark = max(SPACES, key=lambda mark: counts[mark])
    return mark if counts[mark] else ""
