"""The command line: valid input; bad input, which gives one line and exit status 2, and writes nothing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from directories import FIELDS, here, make_run, read, refused
from processes import EXPERIMENTS, SCRIPT, Ended, assert_refused, command_here, end, start, start_python, tree

from tiejax.lab.settings.command_line import BadInput, field_docs, parse
from tiejax.lab.studies.exor.settings import STUDY, Settings
from tiejax.lab.studies.text_mlm import settings as text_mlm

__all__ = ["here", "refused"]  # fixtures

BAD = {
    "sum": ("--zero [.5,.6]", "--zero", "sum to 1", "1.1"),
    "sum of three": ("--one [.5,.3,.1]", "--one", "sum to 1", "0.9"),
    "negative probability": ("--zero [-.1,1.1]", "--zero", "not negative", "-0.1"),
    "probability is nan": ("--zero [.nan,1]", "--zero", "finite"),
    "no zero": ("--zero []", "--zero", "at least one"),
    "no one": ("--one []", "--one", "at least one"),
    "no list": ("--zero .5", "--zero", "list"),
    "text for a probability": ("--zero [a,1]", "--zero", "number"),
    "one bit": ("--bits 1", "--bits", "between 2 and 16"),
    "17 bits": ("--bits 17", "--bits", "between 2 and 16"),
    "no seed": ("--seeds 0", "--seeds", "at least one"),
    "less than no seed": ("--seeds -3", "--seeds", "at least one"),
    "no seed in the list": ("--seeds []", "--seeds", "at least one"),
    "repeated seed": ("--seeds [3,7,3]", "--seeds", "3 is repeated"),
    "repeated seed 0": ("--seeds [0,5,0]", "--seeds", "0 is repeated"),
    "negative seed": ("--seeds [4,-1]", "--seeds", "between 0 and", "-1"),
    "large seed": ("--seeds [4294967296]", "--seeds", "between 0 and", "4294967296"),
    "more seeds than there are": ("--seeds 9999999999999", "--seeds", "between 0 and"),
    "seeds without brackets": ("--seeds 3,7", "--seeds", "an integer", "list", "or a range FIRST-LAST"),
    "range without an end": ("--seeds 5-", "--seeds", "or a range FIRST-LAST, got '5-'"),
    "range in a list": ("--seeds [1-3]", "--seeds", "or a range FIRST-LAST, got '1-3'"),
    "large seed of a range": ("--seeds 2147483640-2147483648", "--seeds", "between 0 and", "2147483648"),
    "variant and zero": ("--variant dh --zero [.5,.5]", "--variant", "--zero", "not both"),
    "one and variant": ("--one [.5,.5] --variant main", "--variant", "--one", "not both"),
    "unknown variant": ("--variant both", "--variant", "main, dh, no-dh"),
    "unknown model": ("--model gru", "--model", "transformer, lstm, mixer"),
    "heads": ("--heads 3", "--heads", "do not divide", "width 4"),
    "heads of a width": ("--width 10 --heads 4", "--heads", "do not divide", "width 10"),
    "no heads": ("--heads 0", "--heads", ">= 1"),
    "heads of an lstm": ("--model lstm --heads 2", "--heads", "lstm", "hidden"),
    "negative steps": ("--steps -5", "--steps", ">= 1", "-5"),
    "no steps": ("--steps 0", "--steps", ">= 1"),
    "steps in words": ("--steps many", "--steps", "an integer", "many"),
    "steps without a value": ("--steps", "--steps", "expected one argument"),
    "negative rate": ("--learning_rate=-1e-3", "--learning_rate", ">= 0", "-0.001"),
    "rate is nan": ("--learning_rate .nan", "--learning_rate", "number"),
    "negative smallest rate": ("--minimum_learning_rate -1", "--minimum_learning_rate", ">= 0"),
    "smallest above largest": ("--minimum_learning_rate .1", "--minimum_learning_rate", "--learning_rate 0.0005"),
    "negative decay": ("--weight_decay -.1", "--weight_decay", ">= 0"),
    "negative eps": ("--eps -1", "--eps", ">= 0"),
    "negative half period": ("--half_period -1", "--half_period", ">= 1"),
    "negative norm": ("--max_norm -1", "--max_norm", "> 0"),
    "one weight": ("--gradient_weights [1]", "--gradient_weights", "two finite numbers"),
    "negative weight": ("--gradient_weights [1,-.5]", "--gradient_weights", ">= 0"),
    "weight without end": ("--gradient_weights [1,.inf]", "--gradient_weights", "two finite numbers"),
    "dropout of everything": ("--dropout 1", "--dropout", "[0, 1)"),
    "deviation of the tables is 0": ("--table_std 0", "--table_std", "> 0"),
    "negative decay of the tables": ("--table_decay -1", "--table_decay", ">= 0"),
    "rate of the tables is nan": ("--table_rate .nan", "--table_rate", "> 0"),
    "unknown outcomes": ("--softmax some", "--softmax", "all, asked"),
    "no layers": ("--layers 0", "--layers", ">= 1"),
    "no batch": ("--batch_size 0", "--batch_size", ">= 1"),
    "batch above the split": ("--batch_size 115", "--batch_size", "114"),
    "no records": ("--record_every 0", "--record_every", ">= 1"),
    "exact between records": ("--exact_every 750", "--exact_every", "multiple", "500"),
    "no time between checkpoints": ("--checkpoint_every 0", "--checkpoint_every", "> 0"),
    "negative time between checkpoints": ("--checkpoint_every -1", "--checkpoint_every", "> 0"),
    "no run directory": ("--out=", "--out", "expected a directory"),
    "abbreviation": ("--step 5", "unknown option '--step'; did you mean '--steps'?"),
    "abbreviated switch": ("--over", "'--over'", "'--overwrite'?"),
    "abbreviated config": ("--conf files/good.yaml", "'--conf'", "'--config'?"),
    "hyphens": ("--batch-size 0", "--batch_size", ">= 1"),
    "unknown option": ("--learning-rat=3", "'--learning-rat'", "'--learning_rate'?"),
    "far from any option": ("--xyzzy 3", "--xyzzy"),
    "no option": ("transformer", "unexpected argument 'transformer'"),
    "config without a file": ("--steps 5 --config", "--config", "expected a file"),
    "no such file": ("--config files/none.yaml", "files/none.yaml", "not found"),
    "unknown field": ("--config files/unknown.yaml", "files/unknown.yaml", "record_evry", "record_every'?"),
    "switch in a file": ("--config files/switch.yaml", "files/switch.yaml", "unknown field 'resume'"),
    "wrong type in a file": ("--config files/type.yaml", "files/type.yaml", "steps", "an integer", "many"),
    "wrong type of an item": ("--config files/fraction.yaml", "files/fraction.yaml", "seeds", "an integer", "1.5"),
    "null in a file": ("--config files/null.yaml", "files/null.yaml", "bits", "an integer", "null"),
    "wrong choice in a file": ("--config files/choice.yaml", "files/choice.yaml", "model", "transformer, lstm, mixer"),
    "deep nesting": ("--config files/deep.yaml", "files/deep.yaml", "line 1", "deeper than 32"),
    "deep mappings": ("--config files/deep_mappings.yaml", "files/deep_mappings.yaml", "line 32", "deeper than 32"),
    "NUL in a file": ("--config files/nul.yaml", "files/nul.yaml", "line 2", r"\x00"),
    "escape in a file": ("--config files/escape.yaml", "files/escape.yaml", "line 1", r"\x1b"),
    "escaped NUL": ("--config files/escaped_nul.yaml", "files/escaped_nul.yaml: out", "NUL"),
    "escaped surrogate": ("--config files/surrogate.yaml", "files/surrogate.yaml: out", "lone surrogate"),
    "no such letter": ("--config files/letter.yaml", "files/letter.yaml", "invalid YAML"),
    "escaped control character in a value": ("--config files/escaped_control.yaml", "steps", "an integer", r"\x1b[31m"),
    "a field twice": ("--config files/twice.yaml", "files/twice.yaml", "line 3", "steps is given twice"),
    "a set for a list": ("--config files/set.yaml", "files/set.yaml", "line 1", "!!set"),
    "a mapping for a list": ("--config files/set_without_a_tag.yaml", "zero", "list"),
    "a tag of a number": ("--config files/tag.yaml", "files/tag.yaml", "line 1", "!!bool"),
    "billion laughs": ("--config files/laughs.yaml", "files/laughs.yaml", "line 2", "*a", "write the value itself"),
    "a date": ("--config files/date.yaml", "files/date.yaml", "steps", "an integer", "2024-13-45"),
    "a list as a key": ("--config files/key.yaml", "files/key.yaml", "line 1", "cannot be a key"),
    "two documents": ("--config files/documents.yaml", "files/documents.yaml", "line 2", "another document"),
    "5,000 digits": ("--config files/digits.yaml", "files/digits.yaml", "invalid YAML"),
    "500 bits": ("--config files/bits.yaml", "files/bits.yaml: steps", "64 bits"),
    "a megabyte and more": ("--config files/large.yaml", "files/large.yaml", "at most 1,048,576"),
    "a pipe": ("--config files/pipe.yaml", "files/pipe.yaml", "cannot be read", "named pipe"),
    "deep nesting in an option": (f"--zero {'[' * 3000}", "--zero", "list", "deeper than 32"),
    "deep nesting as an option": (f"--zero={'[' * 200_000}", "--zero", "got [[[[[[", "[...: ", "deeper than 32"),
    "a key twice in an option": ("--zero {a:1,a:1}", "--zero", "list"),
    "an alias in an option": ("--zero [&a,.5,*a]", "--zero", "list"),
    "a set in an option": ("--zero !!set{.5}", "--zero", "list"),
    "a date in an option": ("--zero [2024-01-01]", "--zero", "each a number"),
    "more than 64 bits": ("--steps 99999999999999999999", "--steps", "64 bits"),
    "more than a float": (f"--learning_rate {'9' * 400}", "--learning_rate", "number"),
    "mapping for a number": ("--config files/mapping.yaml", "files/mapping.yaml", "steps", "an integer"),
    "sum in a file": ("--config files/sum.yaml", "zero", "sum to 1"),
    "variant and one in a file": ("--config files/both.yaml", "variant", "one", "not both"),
    "variant over a file": ("--config files/sum.yaml --variant dh", "variant", "zero", "not both"),
    "malformed": ("--config files/malformed.yaml", "files/malformed.yaml", "line 3", "invalid YAML"),
    "tab": ("--config files/tab.yaml", "files/tab.yaml", "line 2", "invalid YAML"),
    "list": ("--config files/list.yaml", "files/list.yaml", "expected lines `field: value`, got a list"),
    "text": ("--config files/text.yaml", "files/text.yaml", "expected lines `field: value`, got a str"),
    "python object": ("--config files/object.yaml", "files/object.yaml", "line 1", "invalid YAML"),
    "binary": ("--config files/binary.yaml", "files/binary.yaml", "cannot be read", "UTF-8"),
    "directory": ("--config files/directory.yaml", "files/directory.yaml", "cannot be read", "directory"),
    "bad file under a good one": ("--config files/type.yaml --config files/good.yaml", "files/type.yaml", "steps"),
    "bad file under a good flag": ("--config files/type.yaml --steps 5", "files/type.yaml", "steps"),
    "out is a file": ("--out files/some_file", "--out", "files/some_file", "not a directory but a file"),
    "out is under a file": ("--out files/some_file/run", "--out", "files/some_file/run", "cannot be written"),
    "out cannot be made": ("--out /proc/none/run", "--out", "/proc/none/run", "cannot be written"),
    "out has a long name": (f"--out {'x' * 300}", "--out", "too long"),
    "out is not UTF-8": ("--out files/\udcff", "--out", "a path in UTF-8", r"files/\udcff"),
    "out is not a run": ("--out files", "--out", "files", "no run", "new directory"),
    "overwrite a directory without a run": ("--out files --overwrite", "--out", "files", "no run", "new directory"),
    "resume nothing": ("--resume", "--resume", "no run", "runs/exor/main-transformer-small"),
    "resume a missing directory": ("--resume --out files/run", "--resume", "no run", "files/run"),
    "resume a directory without a run": ("--resume --out files", "files", "no run"),
    "resume and overwrite": ("--resume --overwrite --out run", "--resume", "--overwrite", "only one of them"),
    "fast engine for the lstm": ("--engine fast --model lstm", "--engine", "the lstm sees the order", "plain"),
    "fast engine for the mixer": ("--engine fast --model mixer", "--engine", "the mixer sees the order", "plain"),
    "fast engine with dropout": ("--engine fast --dropout .1", "--engine", "dropout treats equal symbols differently"),
    "unknown engine": ("--engine slow", "--engine", "auto, fast, plain"),
    "doses with a variant": ("--doses [.5] --variant main", "--doses", "cannot be combined with --variant or --zero"),
    "doses with zero": ("--doses [.5] --zero [.1,.9]", "--doses", "cannot be combined with --variant or --zero"),
    "no dose": ("--doses []", "--doses", "at least one"),
    "dose of 1": ("--doses [.5,1.0]", "--doses", "between 0 and 1", "1.0"),
    "a list twice": ("--variants main --variants dh", "--variants", "given twice; write --variants A B, or --variants+ B"),
    "repeated dose": ("--doses [.5,.7,.5]", "--doses", "0.5 is repeated"),
    "doses for the mixer": ("--doses [.5] --model mixer", "--doses", "only supported for the transformer, not for the mixer"),
    "too many outcomes": ("--doses [.5,.6] --one [.2,.3,.5] --bits 16", "--doses", "at most 1024", "--bits"),
}


@pytest.mark.parametrize(("line", "words"), [(case[0], case[1:]) for case in BAD.values()], ids=list(BAD))
def test_bad_input(refused, line, words):
    refused(line.split(), *words)


def test_bad_input_with_line_ends_is_reported_in_one_line(refused):
    refused(["--config", "files/a\nb.yaml"], r"files/a\nb.yaml", "not found")
    refused(["--steps", "1\n2"], "--steps", "an integer")


def test_refused_input_cannot_control_the_terminal(refused):
    hostile, shown = "\x1b]0;gone\x07\u202e\x9b\udcff", r"\x1b]0;gone\x07\u202e\x9b\udcff"
    refused(["--config", f"files/{hostile}"], f"files/{shown}: not found")
    refused([f"--{hostile}"], shown)
    refused(["--steps", hostile], "--steps", shown)


def test_help_and_printed_settings_cannot_control_the_terminal(here, monkeypatch, capsys):
    Path("hostile.yaml").write_text(r'out: "\e]0;gone\a\u202e"')
    monkeypatch.setenv("COLUMNS", "1000")
    for flag in ("--help", "--help-all", "--print_config"):
        ended = command_here(["--config", "hostile.yaml", flag], monkeypatch, capsys)
        assert (ended.status, ended.err) == (0, "")
        assert all(line.isprintable() for line in ended.out.split("\n"))
    assert yaml.safe_load(ended.out)["out"] == "\x1b]0;gone\x07\u202e"


def test_words_of_a_list_arrive_unchanged():
    words = ["a\udcff", "\U0001f600", "5e-4", "1", "true", "x: y", "#", "*a", "\x1b", "\x9b\u202e", " a ", "é", "b" * 300]
    given, _ = parse(text_mlm.Settings, text_mlm.STUDY.command, ["--corpus", *words])
    assert given.corpus == words


def test_dates_are_text_in_a_text_setting(here):
    Path("date.yaml").write_text("out: 2024-01-31\n")
    assert read("--config", "date.yaml").out == "2024-01-31"


def test_invalid_yaml_is_text_in_a_text_setting(here):
    assert read("--out", "{a: 1, a: 2}").out == "{a: 1, a: 2}"
    assert read("--out", "*a").out == "*a"


@pytest.mark.parametrize("line", ["--zero [.5,.6]", "--config files/malformed.yaml", "--out files/some_file/run"])
def test_bad_input_to_a_process(here, line):
    before = tree(here)
    assert_refused(end(start(*line.split(), cwd=here)))
    assert tree(here) == before


def test_bad_input_is_refused_before_jax_is_loaded(here):
    make_run(here / "run")
    code = """
import sys
from tiejax.lab.runs.entry import main
from tiejax.lab.settings.command_line import BadInput, field_docs
from tiejax.lab.studies.exor.settings import STUDY
for line in ("--heads 3", "--out run", "--config files/type.yaml", "--out files/some_file/run", "--out run --resume --steps 9"):
    try:
        main(STUDY, line.split())
    except BadInput:
        print(sorted({"jax", "jaxlib", "flax", "optax", "orbax", "matplotlib", "scipy"} & set(sys.modules)))
"""
    ended = end(start_python("-c", code, cwd=here))
    assert ended == Ended(0, "[]\n" * 5, "")


@pytest.mark.parametrize(
    "parts", list(itertools.permutations([["--config", "files/good.yaml"], ["--steps", "7"], ["--seeds=[3,7,11]"]]))
)
def test_flags_override_the_file_in_any_order(here, parts):
    config = read(*itertools.chain(*parts))
    assert (config.steps, config.bits, config.seeds) == (7, 4, [3, 7, 11])


def test_a_later_file_overrides_an_earlier_one(here):
    Path("later.yaml").write_text("steps: 6\n")
    config = read("--config=files/good.yaml", "--config", "later.yaml")
    assert (config.steps, config.bits) == (6, 4)


def test_a_file_of_comments_is_valid(here):
    assert read("--config", "files/comments.yaml") == read() == Settings().resolved()


@pytest.mark.parametrize(
    ("text", "seeds", "expected"), [("32", 32, list(range(32))), ("[3,7,11]", [3, 7, 11], [3, 7, 11]), ("[0]", [0], [0])]
)
def test_seeds(here, text, seeds, expected):
    Path("seeds.yaml").write_text(f"seeds: {text}\n")
    for config in (read("--seeds", text), read(f"--seeds={text}"), read("--config", "seeds.yaml")):
        assert config.seeds == seeds
        assert config.seed_list == expected


def test_numbers_that_yaml_reads_as_text(here):
    """In YAML 1.1, 5e-4 is text."""
    Path("rate.yaml").write_text("learning_rate: 5e-4\neps: 1e-8\n")
    config = read("--config", "rate.yaml")
    assert (config.learning_rate, config.eps) == (5e-4, 1e-8)


@pytest.mark.parametrize("variant", ["main", "dh", "no-dh"])
def test_variant(here, variant):
    config = read("--variant", variant)
    assert config.variant_name == variant
    assert Path(config.out).name == f"{variant}-transformer-small"
    assert (config.tasks[0].zero, config.tasks[0].one) == {
        "main": ((0.1, 0.9), (0.5, 0.5)),
        "dh": ((1, 0), (0.5, 0.5)),
        "no-dh": ((1, 0), (0.1, 0.9)),
    }[variant]


def test_explicit_distributions_are_reported_as_custom(here):
    Path("custom.yaml").write_text("zero: [.2, .3, .5]\n")
    for argv in (["--zero", "[.2,.3,.5]"], ["--config", "custom.yaml"]):
        config = read(*argv)
        assert config.variant is None
        assert config.variant_name == "custom"
        assert Path(config.out).name == "custom-transformer-small"
        assert (config.tasks[0].zero, config.tasks[0].one) == ((0.2, 0.3, 0.5), (0.5, 0.5))
    # Even where they are those of a variant.
    assert read("--zero", "[.1,.9]", "--one", "[.5,.5]").variant_name == "custom"
    assert read().variant_name == "main"


@pytest.mark.parametrize(
    "argv",
    [[], ["--seeds", "[3,7,11]", "--variant", "dh", "--resume"], ["--resume", "--quiet", "--config", "files/good.yaml"]],
)
def test_print_config_prints_a_file_that_can_be_loaded(here, monkeypatch, capsys, argv):
    before = tree(here)
    ended = command_here([*argv, "--print_config"], monkeypatch, capsys)
    assert tree(here) == before
    assert (ended.status, ended.err) == (0, "")
    assert sorted(yaml.safe_load(ended.out)) == sorted(FIELDS)
    Path("printed.yaml").write_text(ended.out)
    plain = [word for word in argv if word not in ("--resume", "--quiet")]
    assert read("--config", "printed.yaml") == read(*plain)


def test_help_explains_every_field_and_switch(here, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    ended = command_here(["--help-all"], monkeypatch, capsys)
    assert (ended.status, ended.err) == (0, "")
    explained = field_docs(Settings)
    assert sorted(explained) == sorted(FIELDS)
    options = {part.split(maxsplit=1)[0].rstrip(","): " ".join(part.split()) for part in ended.out.split("\n  --")[1:]}
    for name, text in (explained | STUDY.command.switches).items():
        assert text.strip()
        assert " ".join(text.split()) in options[name]


def test_sizes_and_models_set_their_defaults(here):
    """The published settings."""
    config = read("--model", "mixer", "--size", "medium", "--width", "16")
    assert (config.layers, config.width, config.token_hidden, config.channel_hidden) == (2, 16, 32, 32)
    assert (config.learning_rate, config.steps, config.heads, config.hidden) == (5e-4, 500_000, None, None)
    assert read("--size", "medium").learning_rate == 1e-4


def test_the_engine_is_fast_if_that_is_exact(here):
    assert read().engine == "fast"
    assert read("--engine", "plain").engine == "plain"
    assert read("--dropout", "0.1").engine == "plain"
    assert {read("--model", model).engine for model in ("lstm", "mixer")} == {"plain"}
    assert read().exact_every == read().record_every == 500
    assert read("--engine", "plain").exact_every == 10_000
    # Two records in each cycle of 20,000 steps, although a 15th of the steps is 33,500.
    assert read("--model", "lstm", "--size", "medium").exact_every == 10_000
    assert read("--model", "lstm", "--half_period", "1600").exact_every == 1500
    assert read("--model", "lstm", "--half_period", "100").exact_every == 500


def test_doses_are_conditions_with_every_seed(here):
    config = read("--doses", "[.5,.9]", "--seeds", "[4,2]")
    assert [task.zero for task in config.tasks] == [(0.5, 0.5), (0.9, pytest.approx(0.1))]
    assert [task.one for task in config.tasks] == [(0.5, 0.5)] * 2
    assert config.seeds_by_condition == [(0, 4), (0, 2), (1, 4), (1, 2)]
    assert config.variant_name == "doses"
    assert Path(config.out).name == "doses-transformer-small"


def test_every_config_file_can_be_read(here):
    files = sorted((SCRIPT.parents[1] / "configs" / "exor").glob("*.yaml"))
    assert len(files) >= 14
    outs = [read("--config", str(file)).out for file in files]
    assert len(set(outs)) == len(files)


@pytest.mark.parametrize(
    "script",
    sorted(path.name for path in EXPERIMENTS.glob("*.py") if "open_study(" in path.read_text() or path.name == "bench.py"),
)
def test_every_script_starts_with_only_the_package_installed(script, tmp_path):
    """As a file, from another folder and without PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(EXPERIMENTS / script), "--help"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert script in ended.stdout


def test_help_lists_every_exit_status(here, monkeypatch, capsys):
    out = " ".join(command_here(["--help"], monkeypatch, capsys).out.split())
    assert "Exit status: 0 success; 2 bad input; 3 another process of the cluster exited; 4 a file could not be read" in out


@pytest.mark.parametrize("argv", [["--seeds", "7-9"], ["--seeds=7-9"]])
def test_a_range_of_seeds_is_a_list(argv):
    settings, _ = parse(Settings, STUDY.command, argv)
    assert settings.seeds == [7, 8, 9]


def test_a_range_of_seeds_in_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text("seeds: 1000-1002\n")
    settings, _ = parse(Settings, STUDY.command, ["--config", str(tmp_path / "a.yaml")])
    assert settings.seeds == [1000, 1001, 1002]


@pytest.mark.parametrize("text", ["9-7", "0-1000000"])
def test_ranges_that_hold_no_seeds_or_too_many_are_refused(text):
    with pytest.raises(BadInput, match=rf"^--seeds: expected FIRST-LAST with 1 to 1,000,000 seeds, got {text}$"):
        parse(Settings, STUDY.command, ["--seeds", text])
