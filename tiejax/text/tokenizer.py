"""Tokenizers from files, the hub or training; their vocabularies; and long texts split into parts for encoding."""

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
from tiejax.system.visible import cut
from tiejax.text.character_map import check_maps
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.hub_answers import InvalidAnswer, checked_answers
from tiejax.text.network import reachable

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_OF_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# How byte-level BPE and SentencePiece spell the space before a word.
SPACES = ("\u0120", "\u2581")
# Increment whenever a change makes training on the same text give a different vocabulary.
FORMAT = 2
WITHIN = "##"  # prefix of WordPiece tokens that do not begin a word
# Names of the token that separates texts in a stream: in GPT-2, T5 and LLaMA, BERT, word-level models, and LLaMA 3.
END_OF_TEXT = ("<|endoftext|>", "</s>", "[SEP]", "<eos>", "<|end_of_text|>")
# The vocabulary files of GPT-2: their names on the hub and as first published.
BYTE_LEVEL_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
LETTERS_OF_BYTES = 256
CASED = 0.01  # share of tokens with capitals beyond which a vocabulary is cased, and not one with names such as NUM
MOST_IDS = 2**24  # the largest published vocabularies have 2**18 tokens
PART, PARTS_AT_ONCE = 2**16, 16
# Where a text may be split: before the space between two words, or after a line end without other white space around it.
BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \w)|(?<=\S\n)(?=\S)")
CUTS_TRIED, AROUND = 16, 128
# Training ignores the characters of a word beyond this number, since its time grows with the square of the longest word.
# SentencePiece likewise skips longer lines (max_sentence_length, 4192 bytes).
LEARNT_LETTERS = 4096
LONG_WORD = re.compile(rf"(?<!\S)(\S{{{LEARNT_LETTERS}}})\S+")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer by id, and the ids of its special tokens.

    size: ids are 0 .. size - 1. tokens: `tokens[id]`; empty for unused ids. space: prefix of tokens that begin a word.
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
        """Return the id of the word-initial token spelled exactly `word`, or None if there is none."""
        return self._ids.get(self.space + word) if word else None

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


def load(name: str) -> tokenizers.Tokenizer:
    """Load a tokenizer from a tokenizer.json, a vocab.txt of BERT (one token per line), a folder, or the hub.

    With a vocab.txt, text is lower-cased unless more than 1 % of its tokens have capitals. A folder must contain a
    tokenizer.json, or a byte-level BPE as vocab.json and merges.txt or as encoder.json and vocab.bpe. The tokenizer neither
    pads nor truncates, and encodes special tokens spelled out in a text as ordinary text. Raises CorpusError.
    """
    path = Path(name)
    try:
        if path.is_dir():
            tokenizer = _from_folder(path, name)
        elif path.exists():
            check_file(path)
            tokenizer = _from_json(path, name) if path.suffix == ".json" else _from_lines(path, name)
        elif path.suffix in (".json", ".txt") or path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise CorpusError(f"tokenizer {name}: not found; name a file, a folder or a model of the hub")
        else:
            tokenizer = _from_hub(name)
    except OSError as error:
        raise CorpusError(f"tokenizer {name}: cannot be read: {error.strerror or error}") from None
    if (size := number_of_ids(tokenizer)) == 0:
        raise CorpusError(f"tokenizer {name}: its vocabulary is empty")
    if _drops_letters(tokenizer):
        raise CorpusError(
            f"tokenizer {name}: its BPE would drop letters without a token from a text; expected an unk_token, or a token for "
            "every byte"
        )
    if size > MOST_IDS:  # no table of embeddings has room for it
        raise CorpusError(f"tokenizer {name}: a token has the id {size - 1}; expected at most {MOST_IDS - 1}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _drops_letters(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether encoding leaves out letters without a token: by a BPE with neither an unknown token nor all bytes."""
    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.unk_token is not None:
        return False
    names = map("<0x{:02X}>".format, range(LETTERS_OF_BYTES)) if model.byte_fallback else pre_tokenizers.ByteLevel.alphabet()
    return not set(names) <= tokenizer.get_vocab().keys()


def encoded(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], offsets: bool = False) -> list[tokenizers.Encoding]:
    """Return the encodings of texts, without special tokens around them, in parallel.

    offsets: whether the positions of the tokens in the text are needed, which takes longer.

    Raises CorpusError if a text cannot be encoded, such as a word without tokens if the vocabulary has no unknown token.
    """
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    try:
        found: list[tokenizers.Encoding] = encode(texts, add_special_tokens=False)
    # The library raises plain Exception.
    except Exception as error:
        raise CorpusError(f"tokenizer: a text cannot be encoded: {first_line(error)}") from None
    return found


def _from_json(path: Path, name: str) -> tokenizers.Tokenizer:
    content = read_bytes(path)
    try:
        text = content.decode("utf-8")
        check_maps(text)
        return tokenizers.Tokenizer.from_str(text)
    # The parser of the tokenizers library raises plain Exception.
    except Exception as error:
        raise CorpusError(f"tokenizer {name}: invalid tokenizer.json: {first_line(error)}") from None


def _from_folder(path: Path, name: str) -> tokenizers.Tokenizer:
    if (path / "tokenizer.json").exists():
        return _from_json(path / "tokenizer.json", name)
    for files in BYTE_LEVEL_FILES:
        vocab, merges = (path / file for file in files)
        if vocab.exists() and merges.exists():
            try:
                return byte_level(bpe(json.loads(read_bytes(vocab)), merges))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise CorpusError(f"tokenizer {name}: invalid BPE in {' and '.join(files)}: {first_line(error)}") from None
    pairs = ", or ".join(" with ".join(files) for files in BYTE_LEVEL_FILES)
    raise CorpusError(
        f"tokenizer {name}: the folder contains no tokenizer; expected tokenizer.json, or {pairs}; "
        "to use a vocab.txt, name the file"
    )


def _from_lines(path: Path, name: str) -> tokenizers.Tokenizer:
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"tokenizer {name}: byte {error.start} is not UTF-8; expected UTF-8 text with one token per line"
        ) from None
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines):
        token = line.removesuffix("\r")
        if not token or token in vocab:
            what = f"repeats {cut(token)!r}" if token else "is empty"
            raise CorpusError(f"tokenizer {name}: line {number + 1} {what}; expected one token per line, each once")
        vocab[token] = number
    return _bert(vocab)


def _from_hub(name: str) -> tokenizers.Tokenizer:
    online = not constants.HF_HUB_OFFLINE and reachable(constants.ENDPOINT)
    try:
        with checked_answers():
            file = Path(hf_hub_download(name, "tokenizer.json", local_files_only=not online))
    except errors.LocalEntryNotFoundError:
        where = constants.ENDPOINT.split("//")[-1]
        raise CorpusError(
            f"tokenizer {name}: no such file, and {where} does not answer; check the path or the network"
        ) from None
    except errors.HFValidationError:
        raise CorpusError(f"tokenizer {name}: no such file, and not a valid name on the hub") from None
    except errors.RepositoryNotFoundError:
        raise CorpusError(f"tokenizer {name}: no such file, and no such model on the hub") from None
    except errors.EntryNotFoundError:
        raise CorpusError(
            f"tokenizer {name}: the model on the hub has no tokenizer.json; download its vocab.txt and name that file"
        ) from None
    except errors.HfHubHTTPError as error:
        raise CorpusError(f"tokenizer {name}: the hub refused the request: {first_line(error)}") from None
    except InvalidAnswer as error:
        raise CorpusError(f"tokenizer {name}: {error}") from None
    return _from_json(file, name)


def train(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a lower-cased WordPiece tokenizer, as in BERT, with at most `vocab_size` tokens.

    The same texts always give the same tokens. Characters of a word beyond the first 4,096 are ignored. Raises CorpusError if
    the alphabet alone needs more tokens.
    """

    def trained(size: int, first: Sequence[str]) -> tokenizers.Tokenizer:
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=[*SPECIAL, *first], show_progress=False)
        tokenizer = _bert({})
        tokenizer.train_from_iterator(map(_without_long_tails, texts()), trainer)
        return tokenizer

    # Equally frequent pairs are merged in the order of their ids. The ids of word-internal letters come from a randomly seeded
    # hash table unless they are listed as special tokens, so a first pass collects these letters.
    within = sorted(token for token in trained(0, ()).get_vocab() if token.startswith(WITHIN))
    tokenizer = _bert(trained(vocab_size, within).get_vocab())
    _check_size(tokenizer, vocab_size)
    return tokenizer


def _check_size(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> None:
    """Raise CorpusError if a trained tokenizer has more than `vocab_size` tokens."""
    if (least := tokenizer.get_vocab_size()) > vocab_size:
        raise CorpusError(
            f"vocab_size {vocab_size}: expected at least {least}, for the letters of this corpus and the special tokens"
        )


def train_unigram(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a unigram tokenizer, as in SentencePiece, with at most `vocab_size` tokens.

    Text is normalised (NFKC) and lower-cased, and a space belongs to the word after it. Special tokens are those of BERT.
    Characters of a word beyond the first 4,096 are ignored. Training is not deterministic, even on one thread: store the
    result. Raises CorpusError if the alphabet alone needs more tokens.
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
        # The trainer expects one sentence at a time: from whole texts, it would learn only the longest words.
        tokenizer.train_from_iterator(
            (line for text in texts() for line in _without_long_tails(text).split("\n") if line), trainer
        )
    except Exception as error:  # the library raises plain Exception
        raise CorpusError(f"vocab_size {vocab_size}: training failed: {first_line(error)}") from None
    _check_size(tokenizer, vocab_size)
    # The library does not restore the last digits of the scores that it writes, so round them to be equal after reloading.
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = [[token, round(score, 6)] for token, score in content["model"]["vocab"]]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    _frame(tokenizer)
    return tokenizer


def train_byte_level(texts: Callable[[], Iterable[str]], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer, as in GPT-2, with at most `vocab_size` tokens.

    It encodes and decodes every text without loss. Characters of a word beyond the first 4,096 are ignored in training. Raises
    CorpusError if `vocab_size` is below 257, for all bytes and the end of text.
    """
    if vocab_size < LETTERS_OF_BYTES + 1:
        raise CorpusError(
            f"vocab_size {vocab_size}: expected at least {LETTERS_OF_BYTES + 1}, for every byte and {END_OF_TEXT[0]}"
        )
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Encoding with a tokenizer while it is being trained would deadlock, so another one splits the texts.
    splitter = byte_level(models.BPE())
    tokenizer.train_from_iterator((part for text in texts() for part in in_parts(splitter, _without_long_tails(text))), trainer)
    return tokenizer


def _without_long_tails(text: str) -> str:
    """Cut every word of a text to at most 4,096 characters."""
    return LONG_WORD.sub(r"\1", text)


def bpe(ids: dict[str, int], merges: Path) -> models.BPE:
    """Return a byte-level BPE model from its token ids and a file of merges, two tokens per line.

    Raises ValueError naming a bad line, or if a byte has no token: text with it would be lost.
    """
    pairs = list[tuple[str, str]]()
    for number, line in enumerate(read_bytes(merges).decode("utf-8").split("\n")):
        pair = line.removesuffix("\r").split(" ")
        if line.startswith("#version") or pair == [""]:
            continue
        # Check here: the library would panic, or raise an error that does not name the line.
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise ValueError(f"line {number + 1} of {merges.name}: expected a merge of two tokens into a third")
        pairs.append((pair[0], pair[1]))
    if missing := len(set(pre_tokenizers.ByteLevel.alphabet()) - ids.keys()):
        raise ValueError(f"{missing} of {LETTERS_OF_BYTES} bytes have no token, so it is not byte-level; save a tokenizer.json")
    return models.BPE(ids, pairs)


def byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    """Return a tokenizer with a byte-level BPE model that splits words as GPT-2 does and maps bytes to letters."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.encode_special_tokens = True
    if tokenizer.token_to_id(END_OF_TEXT[0]) is not None:
        tokenizer.add_special_tokens([END_OF_TEXT[0]])
    return tokenizer


def _bert(vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer, which lower-cases unless more than 1 % of the tokens outside of brackets have capitals."""
    words = [token for token in vocab if token[0] not in "[<"]
    cased = sum(token != token.lower() for token in words) > CASED * len(words)
    unknown = "<unk>" if "<unk>" in vocab and "[UNK]" not in vocab else "[UNK]"
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.encode_special_tokens = True
    _frame(tokenizer)
    return tokenizer


def _frame(tokenizer: tokenizers.Tokenizer) -> None:
    """Make a tokenizer add [CLS] and [SEP] by default, as in BERT, for other programs that load its tokenizer.json."""
    special = {token: index for token, index in _special(tokenizer).items() if index is not None}
    if len(special) == len(SPECIAL):
        tokenizer.add_special_tokens(list(special))
        _, _, cls, sep, _ = special.items()
        tokenizer.post_processor = processors.BertProcessing(sep, cls)


def _special(tokenizer: tokenizers.Tokenizer) -> dict[str, int | None]:
    """Return the ids of the special tokens, in the spelling (BERT or RoBERTa) with the most tokens in the vocabulary."""
    spellings: Sequence[Sequence[str]] = (SPECIAL, SPECIAL_OF_ROBERTA)
    by_spelling = [{token: tokenizer.token_to_id(token) for token in spelling} for spelling in spellings]
    return min(by_spelling, key=lambda ids: list(ids.values()).count(None))


def vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer; raises CorpusError if special tokens are missing."""
    special = _special(tokenizer)
    if missing := [token for token, index in special.items() if index is None]:
        raise CorpusError(f"tokenizer: the vocabulary has no {', '.join(missing)}; these are needed to predict masked tokens")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = number_of_ids(tokenizer)
    tokens = [""] * size
    for token, index in ids.items():
        tokens[index] = token
    pad, unknown, cls, sep, mask = (index for index in special.values() if index is not None)
    return Vocabulary(size, pad, unknown, cls, sep, mask, tuple(tokens), _space(tokenizer, tokens))


def number_of_ids(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the number of rows of an embedding table for the tokenizer: its highest id plus 1."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def unknown(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return the id of the token for text that has no other; None if there is none."""
    if isinstance(tokenizer.model, models.Unigram):
        found: int | None = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return found
    name = tokenizer.model.unk_token
    return None if name is None else tokenizer.token_to_id(name)


def end_of_text(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the id of the token that ends a text; raises CorpusError if there is none.

    Of several, one that is marked as special: others, such as `</s>` in a vocabulary with HTML tags, may be text.
    """
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    names = sorted(END_OF_TEXT, key=lambda token: token not in special)  # in their order otherwise
    end = next((index for index in map(tokenizer.token_to_id, names) if index is not None), None)
    if end is None:
        raise CorpusError(f"tokenizer: the vocabulary has no end-of-text token; expected one of {', '.join(END_OF_TEXT)}")
    return end


def _space(tokenizer: tokenizers.Tokenizer, tokens: Sequence[str]) -> str:
    """Return the prefix of tokens that begin a word, or an empty string if the tokenizer has none."""
    # In WordPiece both characters are ordinary letters.
    if not isinstance(tokenizer.model, models.BPE | models.Unigram):
        return ""
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in SPACES}
    mark = max(SPACES, key=lambda mark: counts[mark])
    return mark if counts[mark] else ""


# Splitting long texts.


def in_parts(tokenizer: tokenizers.Tokenizer, text: str, least: int = PART) -> Iterator[str]:
    """Split a text into parts of about `least` characters whose concatenated tokens equal those of the whole text.

    This bounds memory: an encoding takes many times the memory of its text. If no position for a cut is found, the rest of the
    text stays whole.
    """
    start = 0
    while start < len(text):
        end = _cut(tokenizer, text, start + least)
        yield text[start:end]
        start = end


def _cut(tokenizer: tokenizers.Tokenizer, text: str, near: int) -> int:
    """Return the first position from `near` on where a cut changes no token, or the length of the text if none is found."""

    def tokens(part: str) -> list[int]:
        return list(encoded(tokenizer, [part])[0].ids)

    # Such a cut never changes tokens of GPT-2, but may do so for other tokenizers: try each on the text around it.
    for between in itertools.islice(BETWEEN_WORDS.finditer(text, near), CUTS_TRIED):
        at = between.start()
        before, after = text[max(0, at - AROUND) : at], text[at : at + AROUND]
        if tokens(before) + tokens(after) == tokens(before + after):
            return at
    return len(text)


def in_batches(items: Iterable[T], number: int = PARTS_AT_ONCE) -> Iterator[list[T]]:
    """Yield the items in lists of at most `number`, since a tokenizer encodes a list of texts on all cores."""
    waiting = iter(items)
    while batch := list(itertools.islice(waiting, number)):
        yield batch
