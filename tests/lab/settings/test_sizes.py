"""Settings that are too large are refused in one line with exit status 2, and nothing is written, for every study."""

import dataclasses
import shlex
import shutil
import typing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from processes import EXPERIMENTS, assert_refused, command_here, end, start, start_python, tree

from tiejax.lab.commands import studies
from tiejax.lab.settings import command_line, sizes
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import MOST, MOST_STEPS, Need, check_disk, check_memory, most_of
from tiejax.system.memory import size_words

NAMES = ("exor", "untying", "text_mlm", "layer_tying", "embedding_coupling")
BLOCKWISE = ("causal_untying",)  # whose memory does not grow with the state of all seeds
STUDIES = {name: studies.load(name) for name in (*NAMES, *BLOCKWISE)}
SHAPE = (
    "{a: {embed_in: 8, embed_out: 8, width: 8, layers: 2, heads: 2}, "
    "big: {embed_in: %s, embed_out: 8, width: %s, layers: %s, heads: 1}}"
)

# Study, command line, words of the message.
REFUSED = [
    *((name, "--seeds 100000000", ("--seeds", "1,000,000")) for name in NAMES),
    *((name, "--seeds 1000000", ("--seeds 1000000: the run needs at least", "this machine has")) for name in NAMES[1:]),
    ("exor", "--seeds 1000000 --size medium", ("--seeds 1000000", "the run needs at least", "this machine has")),
    ("exor", "--seeds 1000000", ("--seeds 1000000: the records of the run need", "on the disk of --out", "100 GiB free")),
    *((name, "--steps 99999999999", ("--steps", "1,000,000,000", "99999999999")) for name in NAMES),
    *(
        (name, "--steps 999999999 --record_every 1", ("--steps 999999999", "records", "this machine has"))
        for name in NAMES[2::2]
    ),
    *((name, "--width 1000000000", ("--width", "65,536")) for name in NAMES[:4]),
    *((name, "--width 65536", ("--width 65536", "the run needs at least")) for name in NAMES[:4]),
    *((name, "--layers 100000", ("--layers", "256")) for name in NAMES[:4]),
    *((name, "--batch_size 1000000000", ("--batch_size", "16,777,216")) for name in NAMES[:4]),
    *((name, "--vocab_size 999999999999", ("--vocab_size", "4,194,304")) for name in NAMES[2:]),
    ("exor", "--steps 999999999 --record_every 1", ("--steps 999999999, --record_every 1", "records")),
    ("exor", "--model lstm --hidden 99999999", ("--hidden", "262,144")),
    ("exor", "--model lstm --hidden 262144", ("--hidden 262144", "the run needs at least")),
    ("exor", "--model mixer --token_hidden 262145", ("--token_hidden", "262,144")),
    ("exor", "--model mixer --channel_hidden 999999999999", ("--channel_hidden", "262,144")),
    ("exor", "--half_period 9999999999", ("--half_period", "1,000,000,000")),
    ("exor", "--record_every 9999999999", ("--record_every", "1,000,000,000")),
    ("untying", "--steps 1000000000 --half_period 1", ("--untie_at", "1,024", "--half_period 1")),
    ("text_mlm", "--vocab_size 4000000", ("--vocab_size 4000000", "the run needs at least")),
    ("text_mlm", "--batch_size 16777216", ("--batch_size 16777216", "the run needs at least")),
    ("text_mlm", "--validation_batches 1000000000", ("--validation_batches 1000000000", "batches")),
    ("text_mlm", "--epochs 1e300", ("--epochs", "1,000,000,000")),
    ("layer_tying", "--vocab_size 4000000 --width 1024", ("--vocab_size 4000000", "--width 1024", "the run needs at least")),
    ("layer_tying", "--batch_size 1000000", ("--batch_size", "rows of 128 tokens", "16,777,216")),
    ("layer_tying", "--episodes 999999999", ("--episodes: 999999999 results in", "steps", "1,000,000,000")),
    ("layer_tying", "--k 1000000000", ("--k 1000000000", "batches")),
    ("embedding_coupling", "--vocab_size 4000000", ("--vocab_size 4000000", "the run needs at least")),
    ("embedding_coupling", "--batch_rows 1000000000", ("--batch_rows", "16,777,216")),
    ("embedding_coupling", "--batch_rows 1000000", ("--batch_rows", "rows of 64 tokens")),
    ("embedding_coupling", "--fine_tuning_seeds 1000000", ("--fine_tuning_seeds 1000000", "the run needs at least")),
    ("embedding_coupling", f"--shapes '{SHAPE % (10**9, 8, 1)}'", ("--shapes", "big", "embed_in", "65,536")),
    ("embedding_coupling", f"--shapes '{SHAPE % (8, 65536, 1)}'", ("--shapes", "the run needs at least")),
    ("embedding_coupling", f"--shapes '{SHAPE % (8, 8, 100000)}'", ("--shapes", "big", "layers", "256")),
]


def not_reached(*args):
    """Fail a test in which data are prepared before sizes are checked."""
    pytest.fail("data were prepared")


@pytest.fixture
def here(monkeypatch, tmp_path):
    """An empty directory on a machine without an accelerator, with 16 GiB of memory and 100 GiB of free disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setattr(sizes, "machine_memory", lambda: 16 * 2**30)
    monkeypatch.setattr(sizes, "accelerated", lambda: False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 * 2**30))
    return tmp_path


@pytest.mark.parametrize(("name", "line", "words"), REFUSED, ids=[f"{name} {line}"[:60] for name, line, _ in REFUSED])
def test_too_large_settings_are_refused(here, monkeypatch, capsys, name, line, words):
    study = dataclasses.replace(STUDIES[name], prepare=not_reached)
    ended = command_here(shlex.split(line), monkeypatch, capsys, study)
    assert_refused(ended, *words, script=EXPERIMENTS / f"{name}.py")
    assert tree(here) == {}


@pytest.mark.parametrize("name", NAMES)
def test_too_large_settings_are_refused_by_a_process(tmp_path, name):
    """With the memory of this machine, which is too small for any of these runs."""
    env = {"JAX_PLATFORMS": "cpu"}
    script = EXPERIMENTS / f"{name}.py"
    size = ["--size", "medium"] if name == "exor" else []
    process = start("--seeds", 10**6, *size, cwd=tmp_path, script=script, env=env)
    assert_refused(end(process, 60), "--seeds 1000000", script=script)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("exor --seeds [1,100000000]", ("--seeds", "1,000,000")),
        ("text --batch_size 1000000000", ("--batch_size", "16,777,216")),
        ("text --vocab_size 999999999999", ("--vocab_size", "4,194,304")),
        ("layers --layers [2,100000]", ("--layers", "256")),
        ("layers --vocab_size 999999999999", ("--vocab_size", "4,194,304")),
        ("encoder --batch_rows 1000000000", ("--batch_rows", "16,777,216")),
        ("exor --repeats 9999999999", ("--repeats", "1,000,000,000")),
    ],
)
def test_too_large_benchmarks_are_refused(here, line, words):
    from experiments.bench import command

    with pytest.raises(BadInput) as refused:
        command.main(line.split())
    for word in words:
        assert word in str(refused.value)
    assert tree(here) == {}


def whole_numbers(kind):
    """The names of the settings that take integers."""
    hints = typing.get_type_hints(kind)
    return [name for name, hint in hints.items() if int in (hint, *typing.get_args(hint))]


NUMBERS = strategies.one_of(
    strategies.integers(1, 10**30), strategies.sampled_from([2**power + more for power in range(4, 70) for more in (-1, 0, 1)])
)


@pytest.mark.parametrize("name", [*NAMES, *BLOCKWISE])
@settings(max_examples=40, deadline=None)
@given(data=strategies.data())
def test_any_setting_is_refused_or_fits(name, data):
    """Only BadInput is raised, nothing large is allocated, and accepted settings fit int32 counters."""
    kind = STUDIES[name].settings
    chosen = data.draw(strategies.dictionaries(strategies.sampled_from(whole_numbers(kind)), NUMBERS, min_size=1, max_size=3))
    module = STUDIES[name].sizes
    refused, resolved = None, None
    try:
        resolved = kind(**chosen).resolved()
        check_memory(resolved, module.need(resolved), module.FLAGS, memory=2**40)
    except BadInput as error:
        refused = str(error)
    if refused is not None:
        assert refused.startswith("--")
        assert len(refused.splitlines()) == 1
        return
    assert module.need(resolved).total <= 2**40
    assert all(getattr(resolved, field) <= MOST_STEPS for field in chosen if isinstance(getattr(resolved, field), int))


@pytest.mark.parametrize("file", sorted((EXPERIMENTS.parent / "configs").glob("*/*.yaml")), ids=lambda file: file.stem)
def test_the_need_of_every_configuration_is_counted(file):
    """Without the members that only serve to choose learning rates, which hold their share of the state.

    The largest is RemBERT, with a member of 993 million parameters for each of both purposes.
    """
    study = STUDIES[file.parent.name]
    resolved = command_line.parse(study.settings, study.command, ["--config", str(file)])[0].resolved()
    needed = study.sizes.need(resolved)
    assert needed.state > 0
    choosing = getattr(resolved, "rate_seeds", 0)
    reported = needed.total - needed.state * choosing / (resolved.number_of_seeds + choosing)
    assert 0 < reported < 96 * 2**30


def test_a_configuration_that_does_not_fit_can_still_be_printed(here, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "machine_memory", lambda: 2**20)
    config = EXPERIMENTS.parent / "configs" / "embedding_coupling" / "smoke.yaml"
    study = dataclasses.replace(STUDIES["embedding_coupling"], prepare=not_reached)
    for more in (["--print_config"], ["--help"], ["--count"]):
        assert command_here(["--config", str(config), *more], monkeypatch, capsys, study).status == 0
    assert_refused(
        command_here(["--config", str(config)], monkeypatch, capsys, study),
        "the run needs at least", "this machine has 1 MiB",
        script=EXPERIMENTS / "embedding_coupling.py",
    )  # fmt: skip


def test_counters_are_int32():
    """A run counts to one step after its last, and searches for the next record beyond that."""
    largest = np.iinfo(np.int32).max
    assert largest > 2 * MOST_STEPS + 1
    assert all(most <= MOST_STEPS for most in MOST.values())
    assert most_of("any other") == MOST_STEPS


FLAGS = {"state": ("wide",), "records": ("long",), "training": ("wide",), "disk": ("wide", "long")}


@dataclasses.dataclass(frozen=True)
class Sized:
    """Settings whose need is 1 KiB for each unit of `wide` and 1 byte for each unit of `long`."""

    wide: int = 4
    long: int = 100

    def resolved(self):
        return self


def need(sized):
    return Need(state=1024 * sized.wide, records=sized.long, training=2048)


@pytest.mark.parametrize(
    ("sized", "memory", "message"),
    [
        (Sized(wide=100), 2**15, "--wide 100: the run needs at least 102 KiB (models and optimizers 100 KiB, gradients "
         "and activations 2 KiB), this machine has 32 KiB"),
        (Sized(long=2**20), 2**15, "--long 1048576: the run needs at least 1.01 MiB (records 1 MiB), this machine has "
         "32 KiB"),
        (Sized(wide=1024, long=2**20), 2**15, "--wide 1024, --long 1048576: the run needs at least 2 MiB (models and "
         "optimizers 1 MiB, records 1 MiB), this machine has 32 KiB"),
        # Defaults on a machine that is too small for them: the settings that decide the largest purposes.
        (Sized(), 4096, "--wide 4: the run needs at least 6.1 KiB (models and optimizers 4 KiB, gradients and activations "
         "2 KiB, records 100 B), this machine has 4 KiB"),
    ],
)  # fmt: skip
def test_the_message_names_the_need_and_the_settings_that_decide_it(monkeypatch, sized, memory, message):
    monkeypatch.setattr(sizes, "accelerated", lambda: False)
    with pytest.raises(BadInput) as refused:
        check_memory(sized, need(sized), FLAGS, memory)
    assert str(refused.value) == message


def test_settings_that_fit_and_needs_of_other_devices_are_not_refused(monkeypatch):
    exactly = need(Sized()).total
    monkeypatch.setattr(sizes, "accelerated", lambda: False)
    check_memory(Sized(), need(Sized()), FLAGS, exactly)
    with pytest.raises(BadInput):
        check_memory(Sized(), need(Sized()), FLAGS, exactly - 1)
    check_memory(Sized(), need(Sized()), FLAGS, exactly - 2048, alone=False)
    monkeypatch.setattr(sizes, "accelerated", lambda: True)
    check_memory(Sized(), need(Sized()), FLAGS, exactly - 2048)
    with pytest.raises(BadInput):
        check_memory(Sized(), need(Sized()), FLAGS, exactly - 2049)


def test_a_disk_too_small_for_the_records_is_refused(tmp_path):
    """The records that the run will replace count as free."""
    out, free = tmp_path / "not" / "yet", shutil.disk_usage(tmp_path).free
    check_disk(Sized(long=free // 2), free // 2, FLAGS, out)
    message = rf"^--long {4 * free}: the records of the run need .* on the disk of --out {out}, which has .* free$"
    with pytest.raises(BadInput, match=message):
        check_disk(Sized(long=4 * free), 4 * free, FLAGS, out)
    existing = tmp_path / "records"
    with existing.open("wb") as file:
        file.truncate(5 * free)  # a sparse file
    check_disk(Sized(long=4 * free), 4 * free, FLAGS, out, [existing])
    assert not out.parent.exists()


def test_a_run_whose_disk_is_too_small_is_refused(here, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=40))
    ended = command_here(["--records_on", "disk", "--out", "run"], monkeypatch, capsys, STUDIES["exor"])
    words = (": the records of the run need", "on the disk of --out run", "which has 40 B free")
    assert_refused(ended, *words, script=EXPERIMENTS / "exor.py")
    assert tree(here) == {}


@pytest.mark.parametrize(("platforms", "expected"), [("cpu", False), ("cpu,cuda", False), ("cuda", True), ("tpu,cpu", True)])
def test_jax_platforms_decides_about_accelerators(monkeypatch, platforms, expected):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert sizes.accelerated() is expected


def test_units():
    sizes = (0, 1, 1024, 1536, 2**50)
    assert [size_words(size) for size in sizes] == ["0 B", "1 B", "1 KiB", "1.5 KiB", "1,048,576 GiB"]


def test_resolving_and_counting_load_no_jax(tmp_path):
    code = """
import sys
from tiejax.lab.runs import resume
from tiejax.lab.commands import studies
for name in ("exor", "untying", "text_mlm", "layer_tying", "embedding_coupling"):
    study = studies.load(name)
    study.sizes.need(resume.parsed(study, []).settings)
print(sorted({"jax", "jaxlib", "flax", "optax", "orbax", "scipy"} & set(sys.modules)))
"""
    ended = end(start_python("-c", code, cwd=tmp_path, env={"PYTHONPATH": str(EXPERIMENTS.parent)}))
    assert (ended.status, ended.out, ended.err) == (0, "[]\n", "")
