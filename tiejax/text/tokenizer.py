"""Tokenizers: read from a file or the hub, or trained; what training needs to know of a vocabulary; long texts in parts."""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import tokenizers
from huggingface_hub import constants, errors, hf_hub_download
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiejax.system.files import check_file, read_bytes
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.network import reachable

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_OF_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# How byte-level BPE and SentencePiece write the space before a word.
SPACES = ("\u0120", "\u2581")
# To be raised whenever training on the same text would give another vocabulary than before.
FORMAT = 2
WITHIN = "##"  # before a token of WordPiece that does not begin a word
# What stands between two texts of one stream, by the name it has in GPT-2, T5 and LLaMA, BERT, and word-level models.
END_OF_TEXT = ("<|endoftext|>", "</s>", "[SEP]", "<eos>", "<|end_of_text|>")
# The tokens of GPT-2, as the hub names their files and as they were first published.
BYTE_LEVEL_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
LETTERS_OF_BYTES = 256
PART, PARTS_AT_ONCE = 2**16, 16
# Before the space between two words, or after the end of a line that white space neither precedes nor follows.
BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \w)|(?<=\S\n)(?=\S)")
CUTS_TRIED, AROUND = 16, 128
# Of a word, what is learnt from: the time that training takes grows with the square of the longest. SentencePiece, too, leaves
# out lines that are longer (max_sentence_length, 4192 bytes).
LEARNT_OF_A_WORD = 4096
LONG_WORD = re.compile(rf"(?<!\S)(\S{{{LEARNT_OF_A_WORD}}})\S+")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer, by id, and the ids of the special ones.

    size: ids are 0 .. size - 1. tokens: `tokens[id]`; empty where no token has an id. space: what stands before a token
    that begins a word.
    """

    size: int
    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    tokens: tuple[str, ...]
    space: str = ""

    @property
    def special(self) -> tuple[int, ...]:
        """The ids (pad, unknown, cls, sep, mask)."""
        return self.pad, self.unknown, self.cls, self.sep, self.mask

    def id_of(self, word: str) -> int | None:
        """Return the id of the token that begins a word and is `word`, letter by letter; None if there is none."""
        return self._ids.get(self.space + word) if word else None

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


def load(name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer in a vocab.txt (BERT's, one token a line, lower-cased), a tokenizer.json, or of a hub name.

    Of a folder: its tokenizer.json, or the byte-level BPE in its vocab.json and merges.txt, or encoder.json and vocab.bpe.
    It neither pads nor truncates, and special tokens spelled out in a text are text. Raises CorpusError.
    """
    path = Path(name)
    try:
        if path.is_dir():
            tokenizer = _from_folder(path, name)
        elif path.exists():
            check_file(path)
            tokenizer = _from_json(path, name) if path.suffix == ".json" else _from_lines(path, name)
        elif path.suffix in (".json", ".txt") or path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise CorpusError(f"tokenizer {name}: there is no such file")
        else:
            tokenizer = _from_hub(name)
    except OSError as error:
        raise CorpusError(f"tokenizer {name}: cannot be read: {error.strerror or error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _from_json(path: Path, name: str) -> tokenizers.Tokenizer:
    content = read_bytes(path)
    try:
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    # The parser of tokenizers raises plain Exception.
    except Exception as error:
        raise CorpusError(f"tokenizer {name}: is no tokenizer.json: {first_line(error)}") from None


def _from_folder(path: Path, name: str) -> tokenizers.Tokenizer:
    if (path / "tokenizer.json").exists():
        return _from_json(path / "tokenizer.json", name)
    for files in BYTE_LEVEL_FILES:
        vocab, merges = (path / file for file in files)
        if vocab.exists() and merges.exists():
            try:
                return byte_level(bpe(json.loads(read_bytes(vocab)), merges))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise CorpusError(f"tokenizer {name}: {' and '.join(files)} are no BPE: {first_line(error)}") from None
    pairs = ", nor ".join(" with ".join(files) for files in BYTE_LEVEL_FILES)
    raise CorpusError(
        f"tokenizer {name}: is a folder; name the tokenizer.json or vocab.txt in it (it holds no tokenizer.json, nor {pairs})"
    )


def _from_lines(path: Path, name: str) -> tokenizers.Tokenizer:
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"tokenizer {name}: byte {error.start} is not UTF-8") from None
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines):
        token = line.removesuffix("\r")
        if not token or token in vocab:
            what = f"repeats {token}" if token else "is empty"
            raise CorpusError(f"tokenizer {name}: line {number + 1} {what}; a vocabulary has one token a line, each once")
        vocab[token] = number
    return _bert(vocab)


def _from_hub(name: str) -> tokenizers.Tokenizer:
    online = not constants.HF_HUB_OFFLINE and reachable(constants.ENDPOINT)
    try:
        return _from_json(Path(hf_hub_download(name, "tokenizer.json", local_files_only=not online)), name)
    except errors.LocalEntryNotFoundError:
        where = constants.ENDPOINT.split("//")[-1]
        raise CorpusError(
            f"tokenizer {name}: there is no such file, and {where} does not answer to look the name up there"
        ) from None
    except errors.HFValidationError:
        raise CorpusError(f"tokenizer {name}: there is no such file, and it is no name of the hub") from None
    except errors.RepositoryNotFoundError:
        raise CorpusError(f"tokenizer {name}: there is no such file, and no such name on the hub") from None
    except errors.EntryNotFoundError:
        raise CorpusError(f"tokenizer {name}: has no tokenizer.json on the hub; name its vocab.txt instead") from None
    except errors.HfHubHTTPError as error:
        raise CorpusError(f"tokenizer {name}: the hub refuses: {first_line(error)}") from None


def train(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Return a lower-cased WordPiece tokenizer, as BERT's, with at most `vocab_size` tokens, trained on these texts.

    The same texts always give the same tokens. Of a word, the first 4,096 characters are learnt from. Raises CorpusError if the
    letters need more tokens.
    """

    def trained(size: int, first: Sequence[str]) -> tokenizers.Tokenizer:
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=[*SPECIAL, *first], show_progress=False)
        tokenizer = _bert({})
        tokenizer.train_from_iterator(map(_learnt, texts()), trainer)
        return tokenizer

    # Pairs that are as frequent are merged in the order of their ids, and letters within words have theirs from a hash table
    # with a seed of its own, unless they are named: so they are looked for first.
    within = sorted(token for token in trained(0, ()).get_vocab() if token.startswith(WITHIN))
    tokenizer = _bert(trained(vocab_size, within).get_vocab())
    _check_size(tokenizer, vocab_size)
    return tokenizer


def _check_size(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> None:
    """Raise CorpusError if a tokenizer that was trained has more tokens than it was asked for."""
    if (least := tokenizer.get_vocab_size()) > vocab_size:
        raise CorpusError(
            f"vocab_size {vocab_size}: the letters of this corpus and the special tokens alone are {least} tokens"
        )


def train_unigram(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Return a unigram tokenizer, as SentencePiece's, with at most `vocab_size` tokens, trained on these texts.

    Text is normalised (NFKC) and lower-cased, and a space is part of the word behind it. Special tokens are BERT's. Of a
    word, the first 4,096 characters are learnt from. The same texts give other tokens from run to run, whatever the number of
    threads: store it. Raises CorpusError if the letters need more tokens.
    """
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.encode_special_tokens = True
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL), unk_token=SPECIAL[1], show_progress=False
    )
    try:
        # Its lines are sentences: of whole texts it would keep the longest words alone.
        tokenizer.train_from_iterator((line for text in texts() for line in _learnt(text).split("\n") if line), trainer)
    except Exception as error:  # the library raises plain Exception
        raise CorpusError(f"vocab_size {vocab_size}: no vocabulary can be trained: {first_line(error)}") from None
    _check_size(tokenizer, vocab_size)
    # The library reads back other last digits than it writes: shorter scores are the same in every copy.
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = [[token, round(score, 6)] for token, score in content["model"]["vocab"]]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    _frame(tokenizer)
    return tokenizer


def train_byte_level(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer, as GPT-2's, with at most `vocab_size` tokens, trained on these texts.

    It spells every text and gives it back unchanged. Of a word, the first 4,096 characters are learnt from. Raises
    CorpusError where bytes and end of text need more tokens.
    """
    if vocab_size < LETTERS_OF_BYTES + 1:
        raise CorpusError(
            f"vocab_size {vocab_size}: must be {LETTERS_OF_BYTES + 1} at least, for every byte and {END_OF_TEXT[0]}"
        )
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # A tokenizer that is being trained waits for itself where it is asked to encode.
    splitter = byte_level(models.BPE())
    tokenizer.train_from_iterator((part for text in texts() for part in in_parts(splitter, _learnt(text))), trainer)
    return tokenizer


def _learnt(text: str) -> str:
    """Return a text with the ends of very long words left out."""
    return LONG_WORD.sub(r"\1", text)


def bpe(ids: dict[str, int], merges: Path) -> models.BPE:
    """Return the BPE of these tokens and a file of merges, two tokens a line; raises ValueError that names the line."""
    pairs = list[tuple[str, str]]()
    for number, line in enumerate(read_bytes(merges).decode("utf-8").split("\n")):
        pair = line.removesuffix("\r").split(" ")
        if line.startswith("#version") or pair == [""]:
            continue
        # The library would give up the process's thread, or say nothing of the line.
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise ValueError(f"line {number + 1} of {merges.name} is no merge of two tokens into a third")
        pairs.append((pair[0], pair[1]))
    return models.BPE(ids, pairs)


def byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    """Return the tokenizer that a byte-level BPE model belongs to: words as GPT-2 splits them, letters for bytes."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.encode_special_tokens = True
    if tokenizer.token_to_id(END_OF_TEXT[0]) is not None:
        tokenizer.add_special_tokens([END_OF_TEXT[0]])
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
    special = {token: index for token, index in _special(tokenizer).items() if index is not None}
    if len(special) == len(SPECIAL):
        tokenizer.add_special_tokens(list(special))
        _, _, cls, sep, _ = special.items()
        tokenizer.post_processor = processors.BertProcessing(sep, cls)


def _special(tokenizer: tokenizers.Tokenizer) -> dict[str, int | None]:
    """Return the special tokens in the spelling of which most are there, and their ids."""
    spellings: Sequence[Sequence[str]] = (SPECIAL, SPECIAL_OF_ROBERTA)
    by_spelling = [{token: tokenizer.token_to_id(token) for token in spelling} for spelling in spellings]
    return min(by_spelling, key=lambda ids: list(ids.values()).count(None))


def vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer; raises CorpusError that names the special tokens it lacks."""
    special = _special(tokenizer)
    if missing := [token for token, index in special.items() if index is None]:
        raise CorpusError(f"tokenizer: its vocabulary has no {', '.join(missing)}; masked tokens cannot be predicted without")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = number_of_ids(tokenizer)
    tokens = [""] * size
    for token, index in ids.items():
        tokens[index] = token
    pad, unknown, cls, sep, mask = (index for index in special.values() if index is not None)
    return Vocabulary(size, pad, unknown, cls, sep, mask, tuple(tokens), _space(tokenizer, tokens))


def number_of_ids(tokenizer: tokenizers.Tokenizer) -> int:
    """Return how many rows a table of its tokens has: the highest id and one."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_text(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the id of the token that ends a text; raises CorpusError if there is none."""
    ids = (tokenizer.token_to_id(token) for token in END_OF_TEXT)
    end = next((index for index in ids if index is not None), None)
    if end is None:
        raise CorpusError(f"tokenizer: its vocabulary has no end of text: none of {', '.join(END_OF_TEXT)}")
    return end


def _space(tokenizer: tokenizers.Tokenizer, tokens: Sequence[str]) -> str:
    """Return what stands before a token that begins a word; nothing if words are told apart otherwise."""
    # To WordPiece both marks are letters as any other.
    if not isinstance(tokenizer.model, models.BPE | models.Unigram):
        return ""
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in SPACES}
    mark = max(SPACES, key=lambda mark: counts[mark])
    return mark if counts[mark] else ""


# Long texts.


def in_parts(tokenizer: tokenizers.Tokenizer, text: str, least: int = PART) -> Iterator[str]:
    """Yield a text in parts of about `least` characters whose tokens, one after the other, are those of the whole.

    While it encodes, a tokenizer keeps many times the text in memory. A text stays whole from where no cut can be found.
    """
    start = 0
    while start < len(text):
        end = _cut(tokenizer, text, start + least)
        yield text[start:end]
        start = end


def _cut(tokenizer: tokenizers.Tokenizer, text: str, near: int) -> int:
    """Return where a text can be cut at `near` or soon after it, so that no token changes."""

    def tokens(part: str) -> list[int]:
        return list(tokenizer.encode(part, add_special_tokens=False).ids)

    # GPT-2's splitting into words cannot tell such a cut, but others may, so each is tried on the text around it.
    for between in itertools.islice(BETWEEN_WORDS.finditer(text, near), CUTS_TRIED):
        at = between.start()
        before, after = text[max(0, at - AROUND) : at], text[at : at + AROUND]
        if tokens(before) + tokens(after) == tokens(before + after):
            return at
    return len(text)


def in_batches(items: Iterable[T], number: int = PARTS_AT_ONCE) -> Iterator[list[T]]:
    """Yield the items in lists of at most so many: a tokenizer encodes the texts of a list on all cores."""
    waiting = iter(items)
    while batch := list(itertools.islice(waiting, number)):
        yield batch
