"""Tokenizers: tokens of known sentences, special tokens, training, texts in parts, and errors about unusable files."""

import http.server
import json
import os
import random
import textwrap
import threading
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from corpora import ROOT, SHARED
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Ended, end, start_python
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tiejax.text import tokenizer as tokenization
from tiejax.text.errors import CorpusError

BERT, GPT2 = SHARED / "bert-base-uncased" / "vocab.txt", SHARED / "gpt2"
needs_gpt2 = pytest.mark.skipif(not GPT2.is_dir(), reason="shared/data/gpt2 is missing")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIAL, *"abn.,-", "##a", "##b", "##n", "an", "##na", "##an", "ban", "##banana"]
TEXT = ["the cat sat on the mat, and the other cat sat on the other mat.", "The Cat and THE MAT!"] * 5


def vocab(folder: Path, tokens: list[str], end: str = "\n") -> str:
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}{end}" for token in tokens), newline="")
    return str(path)


def greedy(text: str, tokens: list[str]) -> list[str]:
    """WordPiece as in its paper: repeatedly take the longest token at the beginning of the rest of a word, or else [UNK]."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    for mark in ".,-[]#":
        plain = plain.replace(mark, f" {mark} ")
    found = []
    for word in plain.split():
        parts, start = [], 0
        while start < len(word):
            fitting = [end for end in range(len(word), start, -1) if ("##" if start else "") + word[start:end] in tokens]
            if not fitting:
                parts = ["[UNK]"]
                break
            parts.append(("##" if start else "") + word[start : fitting[0]])
            start = fitting[0]
        found += parts
    return found


@given(st.text(alphabet="abnAN.,- cá\n", max_size=30))
@settings(max_examples=200, deadline=None)
def test_word_piece_is_greedy(tmp_path_factory, text):
    tokenizer = tokenization.load(vocab(tmp_path_factory.mktemp("v"), TOKENS))
    assert tokenizer.encode(text, add_special_tokens=False).tokens == greedy(text, TOKENS)


@pytest.mark.skipif(not BERT.is_file(), reason="shared/data/bert-base-uncased/vocab.txt is missing")
def test_bert_base_uncased():
    """Ids of the published tokenizer."""
    tokenizer = tokenization.load(str(BERT))
    assert tokenizer.encode("Hello, world!").ids == [101, 7592, 1010, 2088, 999, 102]
    assert tokenizer.encode("Who was Jim Henson ?").ids == [101, 2040, 2001, 3958, 27227, 1029, 102]
    text = "Naïveté unbelievably, anti-disestablishmentarianism. Zxqwv."
    assert tokenizer.encode(text, add_special_tokens=False).tokens == greedy(text, BERT.read_text("utf-8").split("\n"))
    vocabulary = tokenization.vocabulary(tokenizer)
    assert vocabulary.size == 30_522
    assert vocabulary.special == (0, 100, 101, 102, 103)
    assert len(vocabulary.tokens) == 30_522
    assert (vocabulary.id_of("the"), vocabulary.id_of("i"), vocabulary.id_of("I")) == (1996, 1045, None)
    assert vocabulary.id_of("unbelievably") is None


def test_capital_sigma_is_lower_cased_without_context(tmp_path):
    """The published code lower-cases in Python first, which gives a final sigma at the end of a word."""
    assert "\u0391\u03a3".lower() == "\u03b1\u03c2"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u03b1\u03c2", "\u03b1\u03c3"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    model = tokenization.load(str(tmp_path / "vocab.txt"))
    assert [model.encode(word).ids[1:-1] for word in ("\u0391\u03a3", "\u03b1\u03c2")] == [[6], [5]]


def test_special_tokens_in_a_text_are_text(tmp_path):
    tokenizer = tokenization.load(vocab(tmp_path, [*TOKENS, "[", "]", "mask"]))
    assert tokenizer.encode("a [MASK] b", add_special_tokens=False).tokens == ["a", "[", "mask", "]", "b"]
    assert tokenizer.encode("a").tokens == ["[CLS]", "a", "[SEP]"]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = tokenization.load(str(tmp_path / "tokenizer.json"))
    assert again.encode("a [MASK] b", add_special_tokens=False).tokens == ["a", "[", "mask", "]", "b"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ids_are_line_numbers(tmp_path, end):
    vocabulary = tokenization.vocabulary(tokenization.load(vocab(tmp_path, TOKENS, end)))
    assert list(vocabulary.tokens) == TOKENS
    assert [vocabulary.id_of(word) for word in ("an", "na", "##na", "AN", "", "[MASK]")] == [
        TOKENS.index("an"), None, TOKENS.index("##na"), None, None, TOKENS.index("[MASK]"),
    ]  # fmt: skip


def test_special_tokens_of_roberta():
    tokenizer = tokenizers.Tokenizer(models.WordPiece({p: i for i, p in enumerate(["<s>", "a", "<pad>", "</s>", "<unk>"])}))
    with pytest.raises(CorpusError, match=r"^tokenizer: the vocabulary has no <mask>; "):
        tokenization.vocabulary(tokenizer)
    tokenizer.add_special_tokens(["<mask>"])
    assert tokenization.vocabulary(tokenizer).special == (2, 4, 0, 3, 5)


def test_missing_special_tokens_are_named(tmp_path):
    tokenizer = tokenization.load(vocab(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "a"]))
    with pytest.raises(CorpusError, match=r"^tokenizer: the vocabulary has no \[SEP\], \[MASK\]; "):
        tokenization.vocabulary(tokenizer)
    # No special token at all.
    with pytest.raises(CorpusError, match=r"no \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]; "):
        tokenization.vocabulary(tokenization.load(vocab(tmp_path, ["a", "b"])))


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentence_token() -> tokenizers.Tokenizer:
    tokens = [*SPECIAL, "\u2581the", "\u2581mat", "the", "mat", "\u2581", *"themat"]
    tokenizer = tokenizers.Tokenizer(models.Unigram([(token, -float(index)) for index, token in enumerate(tokens)], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentence_token])
def test_words_of_other_kinds_of_tokenizers(make, tmp_path):
    """The id of a word is the id that the tokenizer gives to it in the middle of a sentence."""
    path = tmp_path / "tokenizer.json"
    make().save(str(path))
    tokenizer = tokenization.load(str(path))
    vocabulary = tokenization.vocabulary(tokenizer)
    expected = tokenizer.encode("mat the mat", add_special_tokens=False).ids
    assert len(expected) == 3
    assert [vocabulary.id_of("mat"), vocabulary.id_of("the")] == expected[:2]
    assert vocabulary.id_of("tomato") is None


def test_training_word_piece(tmp_path):
    tokenizer = tokenization.train(lambda: iter(TEXT), 40)
    vocabulary = tokenization.vocabulary(tokenizer)
    assert vocabulary.size <= 40
    assert vocabulary.tokens[:5] == tuple(SPECIAL)
    assert vocabulary.special == (0, 1, 2, 3, 4)
    # The most frequent word is a token, and every text can be spelled, lower-cased.
    assert vocabulary.id_of("the") is not None
    assert vocabulary.id_of("The") is None
    for text in TEXT:
        assert tokenizer.encode(text, add_special_tokens=False).tokens == greedy(
            text.replace("!", " ! "), list(vocabulary.tokens)
        )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    assert tokenization.load(str(path)).encode("The mat").ids == tokenizer.encode("The mat").ids
    # As other programs load it.
    assert tokenizers.Tokenizer.from_file(str(path)).encode("The mat").tokens[0] == "[CLS]"


TRAINED = """
import hashlib
from tiejax.text import tokenizer
texts = ["".join(chr(97 + (i * j + i) % 13) + (" " if (i + j) % 5 == 0 else "") for j in range(60)) for i in range(40)]
print(hashlib.sha256(tokenizer.train(lambda: texts, 200).to_str().encode()).hexdigest())
"""


def test_training_is_deterministic_across_processes():
    """Many pairs of letters are equally frequent here; the order of their merges must not be random."""
    assert len({end(start_python("-c", TRAINED)).out for _ in range(4)}) == 1


def test_vocabulary_too_small_for_the_alphabet():
    with pytest.raises(
        CorpusError, match=r"^vocab_size 12: expected at least (\d+), for the letters of this corpus and the special tokens$"
    ) as error:
        tokenization.train(lambda: TEXT, 12)
    least = int(str(error.value).split()[5].rstrip(","))
    assert tokenization.train(lambda: TEXT, least).get_vocab_size() == least
    with pytest.raises(CorpusError):
        tokenization.train(lambda: TEXT, least - 1)


def test_padding_and_truncation_in_a_file_are_ignored(tmp_path):
    tokenizer = tokenization.train(lambda: TEXT, 40)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = tokenization.load(str(tmp_path / "tokenizer.json")).encode("the mat the mat", add_special_tokens=False)
    assert (
        len(found.ids) == len(tokenization.train(lambda: TEXT, 40).encode("the mat the mat", add_special_tokens=False).ids) > 3
    )
    assert "[PAD]" not in found.tokens


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, "not found; "),
        ("missing.json", None, "not found; "),
        ("v.txt", "a\nb\na\n", "line 3 repeats 'a'; expected one token per line, each once"),
        ("v.txt", "a\n\nb\n", "line 2 is empty"),
        ("v.txt", b"a\n\xe9", "byte 2 is not UTF-8; expected UTF-8 text with one token per line"),
        ("t.json", "{", "invalid tokenizer.json: "),
        ("t.json", '{"vocab": {}}', "invalid tokenizer.json: "),
        ("t.json", b"\xff", "invalid tokenizer.json: "),
        ("folder/vocab.txt", "a", "the folder contains no tokenizer; expected tokenizer.json, "),
    ],
)
def test_files_without_a_tokenizer(tmp_path, name, content, words):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    named = str(tmp_path / name.partition("/")[0])
    with pytest.raises(CorpusError) as error:
        tokenization.load(named)
    assert str(error.value).startswith(f"tokenizer {named}: {words}")
    assert len(str(error.value).splitlines()) == 1


# Byte-level BPE.

# Words, letters of several bytes, all kinds of white space, and special tokens spelled out.
ANY_TEXT = st.lists(
    st.sampled_from(
        ["the", " the", "cat", " ", "  ", "\n", "\r\n", "\t", "\u3000", "é", "日本", "'s", "1", ".", "<|endoftext|>", "\0"]
    ),
    max_size=40,
).map("".join) | st.text(max_size=40)


@pytest.fixture(scope="module")
def trained() -> tokenizers.Tokenizer:
    return tokenization.train_byte_level(lambda: [*TEXT, "the cat's 日本 mat\n\n the mat  1.\n"] * 3, 280)


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_byte_level_tokens_encode_without_loss(trained, text):
    tokens = trained.encode(text).tokens
    # How GPT-2 writes bytes as letters: printable ones as themselves, the others as U+0100 and following.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
    assert bytes(byte_of[letter] for token in tokens for letter in token).decode() == text
    assert trained.decode(trained.encode(text).ids) == text


@pytest.mark.parametrize("train", [tokenization.train, tokenization.train_unigram, tokenization.train_byte_level])
def test_training_on_a_line_of_megabytes_without_a_space(train):
    """This takes seconds; without a limit, time grows with the square of its length, to hours."""
    line = "".join(random.Random(0).choices("xyz", k=5_000_000))
    tokenizer = train(lambda: [f"{line}\n", *TEXT * 50], 300)
    assert "cat" in tokenizer.decode(tokenizer.encode("the cat sat", add_special_tokens=False).ids)


def test_training_ignores_letters_after_the_first_4096_of_a_word():
    learnt = tokenization.train(lambda: [f"{'a' * 4095}b{'a' * 10}c {'d' * 4096} e"], 40)
    known = {token.removeprefix("##") for token in learnt.get_vocab()}
    assert {"a", "b", "d", "e"} <= known
    assert "c" not in known


def test_training_byte_level_tokens(trained, tmp_path):
    assert (trained.get_vocab_size(), tokenization.number_of_ids(trained), tokenization.end_of_text(trained)) == (280, 280, 0)
    assert trained.encode(" the cat").tokens == ["Ġthe", "Ġcat"]
    trained.save(str(tmp_path / "tokenizer.json"))
    again = tokenization.load(str(tmp_path))
    text = "the mat <|endoftext|> the mat"
    assert again.encode(text).ids == trained.encode(text).ids
    assert 0 not in again.encode(text).ids
    assert tokenization.train_byte_level(lambda: TEXT, 257).encode("the").tokens == ["t", "h", "e"]
    with pytest.raises(CorpusError, match=r"^vocab_size 256: expected at least 257, "):
        tokenization.train_byte_level(lambda: TEXT, 256)


def prepended() -> tokenizers.Tokenizer:
    """A tokenizer as of LLaMA, which adds a mark before every text, so that any cut changes the tokens."""
    tokenizer = sentence_token()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


@given(
    text=ANY_TEXT.map(lambda text: text * 3), least=st.integers(1, 9), kind=st.sampled_from(["trained", "spaced", "prepended"])
)
@settings(max_examples=300, deadline=None)
def test_tokens_of_parts_are_those_of_the_whole_text(trained, text, least, kind):
    model = trained if kind == "trained" else byte_level() if kind == "spaced" else prepended()
    parts = list(tokenization.in_parts(model, text, least))
    assert "".join(parts) == text
    assert all(parts)
    found = [token for part in parts for token in model.encode(part, add_special_tokens=False).ids]
    assert found == model.encode(text, add_special_tokens=False).ids


def test_lengths_of_parts_and_batches(trained):
    text = "the cat sat\non the mat\n \n" * 50
    assert max(map(len, tokenization.in_parts(trained, text, 40))) < 55
    assert list(tokenization.in_parts(prepended(), text, 40)) == [text]
    assert [list(batch) for batch in tokenization.in_batches("abcde", 2)] == [["a", "b"], ["c", "d"], ["e"]]


@needs_gpt2
def test_gpt2(tmp_path):
    """Ids of the published tokenizer, from files by either name."""
    (tmp_path / "vocab.json").write_bytes((GPT2 / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((GPT2 / "vocab.bpe").read_bytes())
    for folder in (GPT2, tmp_path):
        tokenizer = tokenization.load(str(folder))
        assert tokenizer.encode("Hello world").ids == [15496, 995]
        assert tokenizer.encode("Hello, my dog is cute\n\n").ids == [15496, 11, 616, 3290, 318, 13779, 628]
        assert 50_256 not in tokenizer.encode("<|endoftext|>").ids
        assert (tokenization.number_of_ids(tokenizer), tokenization.end_of_text(tokenizer)) == (50_257, 50_256)


def test_end_of_text_in_other_vocabularies(tmp_path):
    for tokens, expected in (
        (["<|endoftext|>", "</s>"], 0),
        (["a", "</s>", "[SEP]"], 1),
        (["[UNK]", "<eos>", "[SEP]"], 2),
        (["[UNK]", "a", "b", "<eos>"], 3),
    ):
        assert tokenization.end_of_text(tokenization.load(vocab(tmp_path, tokens))) == expected
    with pytest.raises(
        CorpusError, match=r"^tokenizer: the vocabulary has no end-of-text token; expected one of <\|endoftext\|>, "
    ):
        tokenization.end_of_text(tokenization.load(vocab(tmp_path, ["[UNK]", "a"])))


def test_folder_without_a_tokenizer(tmp_path):
    def refused(words: str):
        with pytest.raises(CorpusError) as error:
            tokenization.load(str(tmp_path))
        assert str(error.value).startswith(f"tokenizer {tmp_path}: {words}")
        assert len(str(error.value).splitlines()) == 1

    refused(
        "the folder contains no tokenizer; expected tokenizer.json, or vocab.json with merges.txt, "
        "or encoder.json with vocab.bpe; to use a vocab.txt, name the file"
    )
    (tmp_path / "encoder.json").write_text('{"a": 0, "b": 1}')
    refused("the folder contains no tokenizer; ")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    refused("invalid BPE in encoder.json and vocab.bpe: line 2 of vocab.bpe: expected a merge of two tokens into a third")
    for broken in ('{"a": 0', "[1]", '{"a": "b"}'):
        (tmp_path / "encoder.json").write_text(broken)
        refused("invalid BPE in encoder.json and vocab.bpe: ")
    (tmp_path / "encoder.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    refused("invalid BPE in encoder.json and vocab.bpe: 254 of 256 bytes have no token, so it is not byte-level")
    tokens = ["a", "b", "ab", *sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"a", "b"})]
    (tmp_path / "encoder.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    assert tokenization.load(str(tmp_path)).encode("abb").ids == [2, 1]


# The hub.


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one tokenizer, at models/here, for the client of huggingface_hub."""

    content = b""

    def do_HEAD(self) -> None:
        found = self.path == "/models/here/resolve/main/tokenizer.json"
        self.send_response(200 if found else 404)
        if found:
            self.send_header("ETag", '"0123456789abcdef"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(self.content)))
        elif self.path.startswith("/models/empty/"):
            self.send_header("X-Error-Code", "EntryNotFound")
        else:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        pass


def load_elsewhere(name: str, **env: str) -> Ended:
    """Load a tokenizer in another process, which must end within 15 seconds."""
    code = """
        import sys
        from tiejax.text import tokenizer
        from tiejax.text.errors import CorpusError
        try:
            print(tokenizer.vocabulary(tokenizer.load(sys.argv[1])).size)
        except CorpusError as error:
            print(error)
    """
    # Without the hub settings of the user.
    settings = {name: "" for name in os.environ if name.startswith("HF_")} | {"PYTHONPATH": str(ROOT)}
    return end(start_python("-c", textwrap.dedent(code), name, env=settings | env), timeout=15)


@pytest.mark.slow
def test_names_of_the_hub(tmp_path):
    Hub.content = tokenization.train(lambda: TEXT, 40).to_str().encode()
    size = len(json.loads(Hub.content)["model"]["vocab"])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host = f"127.0.0.1:{server.server_address[1]}"
        settings = {"HF_ENDPOINT": f"http://{host}", "HF_HOME": str(tmp_path)}
        try:
            assert load_elsewhere("models/here", **settings).out == f"{size}\n"
            message = "tokenizer models/nowhere: no such file, and no such model on the hub\n"
            assert load_elsewhere("models/nowhere", **settings).out == message
            message = "the model on the hub has no tokenizer.json; download its vocab.txt and name that file"
            assert load_elsewhere("models/empty", **settings).out == f"tokenizer models/empty: {message}\n"
        finally:
            server.shutdown()
            thread.join()
    # Without the hub: a tokenizer loaded before is still cached, others are an error of one line.
    assert load_elsewhere("models/here", **settings).out == f"{size}\n"
    message = f"tokenizer bert-base-uncased: no such file, and {host} does not answer; check the path or the network\n"
    assert load_elsewhere("bert-base-uncased", **settings) == Ended(0, message, "")
    assert load_elsewhere("two words", **settings).out == (
        "tokenizer two words: no such file, and not a valid name on the hub\n"
    )


def model_json(path, kind, vocab, **fields):
    """Write a tokenizer.json with this model and no other part."""
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    parts |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
    path.write_text(json.dumps(parts | {"model": {"type": kind, "vocab": vocab, **fields}}))
    return str(path)


WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


@pytest.mark.parametrize(
    ("kind", "vocab", "fields"),
    [
        ("WordPiece", {"a": 0}, {"unk_token": "[UNK]", **WORD_PIECE}),
        ("WordLevel", {"a": 0}, {"unk_token": "[UNK]"}),
        ("Unigram", [["a", -1.0]], {"unk_id": None, "byte_fallback": False}),
        ("BPE", {"a": 0}, {"unk_token": "[UNK]", "merges": []}),
    ],
)
def test_a_word_that_has_no_tokens_needs_an_unknown_token(kind, vocab, fields, tmp_path):
    tokenizer = tokenization.load(model_json(tmp_path / "tokenizer.json", kind, vocab, **fields))
    assert [encoding.ids for encoding in tokenization.encoded(tokenizer, ["a", "a"])] == [[0], [0]]
    for encode in (tokenization.encoded, lambda *given: list(tokenization.in_parts(given[0], "a b " * 100, 8))):
        with pytest.raises(CorpusError, match=r"^tokenizer: a text cannot be encoded: [^\n]*(?i:unk)[^\n]*$"):
            encode(tokenizer, ["a", "b"])


BYTES = [f"<0x{number:02X}>" for number in range(256)]


@pytest.mark.parametrize(("tokens", "byte_fallback"), [(["a"], False), (BYTES[1:], True), (BYTES, False)])
def test_a_bpe_that_drops_letters_is_refused(tokens, byte_fallback, tmp_path):
    ids = {token: index for index, token in enumerate(["b", *tokens])}
    file = model_json(tmp_path / "tokenizer.json", "BPE", ids, merges=[], byte_fallback=byte_fallback)
    assert len(tokenizers.Tokenizer.from_file(file).encode("b\x00").ids) == 1
    with pytest.raises(CorpusError, match=r"^tokenizer .*: its BPE would drop letters .*; expected an unk_token"):
        tokenization.load(file)


def test_a_bpe_with_all_bytes_needs_no_unknown_token(tmp_path):
    ids = {token: index for index, token in enumerate(BYTES)}
    tokenizer = tokenization.load(model_json(tmp_path / "tokenizer.json", "BPE", ids, merges=[], byte_fallback=True))
    assert tokenization.encoded(tokenizer, ["\u00e9\x00"])[0].ids == [0xC3, 0xA9, 0]


@pytest.mark.parametrize(
    ("kind", "vocab", "fields", "words"),
    [
        ("WordPiece", {}, {"unk_token": "[UNK]", **WORD_PIECE}, "its vocabulary is empty"),
        ("BPE", {}, {"merges": []}, "its vocabulary is empty"),
        ("Unigram", [], {"unk_id": None, "byte_fallback": False}, "its vocabulary is empty"),
        ("Unigram", [], {"unk_id": 0, "byte_fallback": False}, "invalid tokenizer.json"),
        ("WordLevel", {"a": 2**32 - 1}, {"unk_token": "a"}, "a token has the id 4294967295; expected at most 16777215"),
    ],
)
def test_vocabularies_that_no_table_fits_are_refused(kind, vocab, fields, words, tmp_path):
    with pytest.raises(CorpusError, match=f"^tokenizer [^\n]*tokenizer.json: {words}"):
        tokenization.load(model_json(tmp_path / "tokenizer.json", kind, vocab, **fields))


def test_an_empty_list_of_tokens_is_refused(tmp_path):
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(CorpusError, match=r"vocab\.txt: its vocabulary is empty"):
        tokenization.load(str(tmp_path / "vocab.txt"))


def test_a_cased_word_piece_vocabulary_keeps_its_case(tmp_path):
    cased = [*tokenization.SPECIAL, "I", "am", "in", "London", "l", "##o", "##n", "##d", "i"]
    for tokens, expected in ((cased, ["I", "am", "in", "London"]), ([*map(str.lower, cased[9:]), "am", "in"], None)):
        (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in dict.fromkeys([*tokenization.SPECIAL, *tokens])))
        found = tokenization.load(str(tmp_path / "vocab.txt")).encode("I am in London", add_special_tokens=False).tokens
        assert found == (expected or ["i", "am", "in", "l", "##o", "##n", "##d", "##o", "##n"])


def test_the_end_of_a_text_is_a_special_token_if_there_is_one():
    """As in vocabularies in which `</s>` is an HTML tag."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "<eos>": 2}, []))
    tokenizer.add_tokens(["<s>", "</s>"])
    assert tokenization.end_of_text(tokenizer) == 1
    tokenizer.add_special_tokens(["<eos>"])
    assert tokenization.end_of_text(tokenizer) == 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"), 1),
        (models.BPE({"a": 0}, []), None),
        (models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>"), 1),
        (models.Unigram([("a", -1.0), ("<unk>", 0.0)], unk_id=1), 1),
        (models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"), 1),
    ],
)
def test_the_unknown_token(model, expected):
    tokenizer = tokenizers.Tokenizer(model)
    assert tokenization.unknown(tokenizer) == expected
    if expected is not None:
        assert tokenizer.encode("\u03a9", add_special_tokens=False).ids == [expected]


def test_a_few_capitals_do_not_make_a_vocabulary_cased(tmp_path):
    tokens = [*tokenization.SPECIAL, "NUM", *(f"word{place}" for place in range(200)), "london"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    found = tokenization.load(str(tmp_path / "vocab.txt")).encode("London", add_special_tokens=False)
    assert found.tokens == ["london"]
