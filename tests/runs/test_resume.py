"""Runs that are killed, stopped or find their checkpoints damaged end as an uninterrupted one does, to the bit.

Processes share a compilation cache. The uninterrupted run fills it and the others read it, so that equal results also say that
an executable out of the cache computes the same bits.
"""

import dataclasses
import json
import random
import shutil
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import assert_refused, command_here, end, start, tree, wait_until

from tiejax.training import Checkpoints, checkpoint
from tiejax.training.checkpoint import CheckpointMismatch
from tiejax.tying import Tie

# Records so dense that a chunk is short, and checkpoints after every chunk: there is much to be killed in.
SETTINGS = ["--seeds", 2, "--steps", 1200, "--bits", 5, "--zero", "[.2,.3,.5]", "--record_every", 10]
SETTINGS += ["--exact_every", 100, "--half_period", 300, "--checkpoint_every", 0.01]


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, env):
    """A run from its start to its end in one process."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    ended = end(start(*SETTINGS, "--out", out, env=env))
    assert ended.status == 0, ended.err
    results = json.loads((out / "results.json").read_text())
    assert (results["variant"], results["seeds"], results["excluded_seeds"]) == ("custom", [0, 1], [])
    with np.load(out / "metrics.npz") as metrics:
        assert metrics["step"].tolist() == list(range(0, 1201, 10))
        assert metrics["exact_step"].tolist() == list(range(0, 1201, 100))
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, env, uninterrupted):
    """The same run, stopped by Ctrl-C when it has two checkpoints; and what it said."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = start(*SETTINGS, "--out", out, env=env)
    assert wait_until(lambda: len(steps(out)) > 1, process)
    process.send_signal(signal.SIGINT)
    ended = end(process)
    assert not (out / "results.json").exists()
    return out, ended


@pytest.fixture
def copy(stopped, tmp_path):
    """A copy of the stopped run."""
    return shutil.copytree(stopped[0], tmp_path / "run")


def steps(out):
    """The checkpoints that a run has finished writing."""
    folder = out / "checkpoints"
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()) if folder.is_dir() else []


def assert_same_result(out, other):
    """Every array equal in every bit, and all results but the times."""
    with np.load(out / "metrics.npz") as metrics, np.load(other / "metrics.npz") as expected:
        assert metrics.files == expected.files
        for name in expected.files:
            assert metrics[name].dtype == expected[name].dtype, name
            assert metrics[name].shape == expected[name].shape, name
            assert metrics[name].tobytes() == expected[name].tobytes(), name
    results, wanted = (json.loads((path / "results.json").read_text()) for path in (out, other))
    assert results.pop("timing").keys() == wanted.pop("timing").keys()
    assert results == wanted
    assert (out / "report.html").exists()


def resume(out, env, *settings):
    """Resume a run to its end; return the lines it printed."""
    ended = end(start(*settings, "--out", out, "--resume", env=env))
    assert ended.status == 0, ended.err
    assert "Traceback" not in ended.err
    return ended.out.splitlines()


def test_killed_at_random_moments(tmp_path, env, uninterrupted):
    """Killed twice while it imports and compiles, then whenever it has got a little farther than the time before."""
    out, rng, killed = tmp_path / "run", random.Random(20), []
    for moment in ("importing", "compiling", "training", "training", "training"):
        there, last = (out / "config.yaml").exists(), steps(out)[-1:]
        process = start(*SETTINGS, "--out", out, *(["--resume"] if there else []), env=env)
        if moment == "importing":
            reached = wait_until((out / "config.yaml").exists, process)
        elif moment == "compiling":
            reached = wait_until((out / "checkpoints").exists, process)
        else:
            reached = wait_until(lambda last=last: steps(out)[-1:] > last, process)
        if reached:
            time.sleep(rng.uniform(0, 0.6))
        process.kill()
        if end(process).status != 0:
            killed.append(moment)
    assert len(killed) >= 3
    assert (out / "checkpoints").exists()
    if not (out / "results.json").exists():
        resume(out, env, *SETTINGS)
    assert_same_result(out, uninterrupted)
    assert not (out / "damaged").exists()


def test_ctrl_c(stopped, copy, env, uninterrupted):
    out, ended = stopped
    assert ended.status == 130, ended.err
    assert "Traceback" not in ended.err
    said = [line for line in ended.out.splitlines() if "--resume" in line]
    assert said == ended.out.splitlines()[-1:]
    assert f"step {steps(out)[-1]:,}" in said[0]
    said = resume(copy, env, *SETTINGS)
    assert f"resuming at step {steps(out)[-1]} of 1200" in said
    assert_same_result(copy, uninterrupted)


def test_killed_while_it_writes_its_report(tmp_path, env, uninterrupted):
    out = shutil.copytree(uninterrupted, tmp_path / "run")
    (out / "results.json").unlink()
    (out / "report.html").unlink()
    (out / "metrics.npz").write_bytes(b"half of it")
    resume(out, env)
    assert_same_result(out, uninterrupted)


def test_damaged_newest_checkpoint_of_a_run(copy, env, uninterrupted):
    before, newest = steps(copy)
    flip_a_bit_that_matters(copy / "checkpoints", newest)
    said = [line for line in resume(copy, env) if line.startswith("warning")]
    assert len(said) == 1
    assert f"{copy / 'checkpoints' / str(newest)} is damaged (" in said[0]
    assert "taking the one before it" in said[0]
    assert_same_result(copy, uninterrupted)
    assert before < newest
    assert [entry.name for entry in (copy / "damaged").iterdir()] == [str(newest)]


def test_all_checkpoints_of_a_run_damaged(copy, env, uninterrupted):
    damaged = steps(copy)
    for step in damaged:
        largest(copy / "checkpoints" / str(step)).unlink()
    said = resume(copy, env, *SETTINGS)
    assert len([line for line in said if "is damaged" in line]) == len(damaged) == 2
    assert len([line for line in said if "starting at step 0" in line]) == 1
    assert_same_result(copy, uninterrupted)


def test_resume_with_other_settings_changes_nothing(copy, monkeypatch, capsys):
    before = tree(copy)
    argv = [str(word) for word in SETTINGS]
    ended = command_here([*argv, "--steps", "3000", "--max_norm", "1", "--out", str(copy), "--resume"], monkeypatch, capsys)
    assert_refused(ended, str(copy), "(steps: 1200 -> 3000; max_norm: None -> 1.0)")
    assert tree(copy) == before


# Checkpoints by themselves, with a small state.

TIES = [Tie("embed/embedding", "head/embedding")]


def state(step):
    """Arrays of several types and shapes, some with random bits, different for every step."""
    key = jax.random.key(step)
    params = {"embed": {"embedding": jax.random.normal(key, (40, 33))}, "head": {"bias": jax.random.normal(key, (5,))}}
    return {"params": params, "count": jnp.int32(step), "half": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3) * step}


def records(step):
    rows = np.random.default_rng(step).normal(size=(step, 2, 3))
    rows[0] = np.nan
    record = {"step": np.arange(step, dtype=np.int32), "distance": rows, "finite": rows > 0}
    return {"record": record, "exact": {"risk": rows.astype(np.float32)}}


def assert_same_checkpoint(found, step):
    assert found is not None
    assert found[0] == step
    assert jax.tree.structure(found[1]) == jax.tree.structure(state(step))
    assert jax.tree.structure(found[2]) == jax.tree.structure(records(step))
    for one, other in zip(jax.tree.leaves(found[1:]), jax.tree.leaves((state(step), records(step))), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_a_bit_that_matters(folder, step):
    """Flip a bit of a checkpoint's largest file, which holds arrays, and also copies of tables that are of no use any more."""
    path, rng = largest(folder / str(step)), random.Random(9)
    for _ in range(40):
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        trial, said = shutil.copytree(folder, folder.parent.parent / "trial" / "checkpoints"), []
        checkpoints = Checkpoints(trial, [], said.append)
        with pytest.raises(CheckpointMismatch):  # of ties: the bits are looked at before them, and the older step is sound
            checkpoints.restore({})
        checkpoints.close()
        shutil.rmtree(trial.parent)
        if said:
            return
        flip(path, bit)
    pytest.fail("40 bits of the arrays' file changed nothing")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder with the checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("pair") / "checkpoints"
    checkpoints = Checkpoints(folder, TIES, pytest.fail)
    for step in (5, 10, 20):
        checkpoints.save(step, state(step), records(step))
    checkpoints.close()
    return folder


def restored(folder, step_saved=None, ties=TIES, like=None):
    """Restore the newest sound checkpoint; return it, what was said, and the step that was saved and restored thereafter."""
    said = []
    checkpoints = Checkpoints(folder, ties, said.append)
    try:
        found = checkpoints.restore(state(0) if like is None else like)
        if step_saved is not None:
            checkpoints.save(step_saved, state(step_saved), records(step_saved))
            assert_same_checkpoint(checkpoints.restore(state(0)), step_saved)
    finally:
        checkpoints.close()
    return found, said


def test_checkpoints_keep_the_two_newest(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    assert steps(folder.parent) == [10, 20]
    found, said = restored(folder)
    assert_same_checkpoint(found, 20)
    assert said == []
    assert not (folder.parent / "damaged").exists()


def test_no_checkpoint(tmp_path):
    assert restored(tmp_path / "checkpoints") == (None, [])


def assert_taken_or_left(folder, harmful):
    """Either the newest as it was saved, in silence; or the one before, as it was saved, and one line on the newest."""
    found, said = restored(folder)
    if said:
        assert len(said) == 1
        assert len(said[0].splitlines()) == 1
        assert f"{folder / '20'} is damaged (" in said[0]
        assert said[0].endswith("; taking the one before it")
        assert_same_checkpoint(found, 10)
        assert (folder.parent / "damaged" / "20").is_dir()
        assert not (folder / "20").exists()
    else:
        assert_same_checkpoint(found, 20)
        assert not harmful
    return said


def parts(pair):
    return sorted(path.relative_to(pair) for path in (pair / "20").rglob("*") if path.is_file())


def test_one_flipped_bit(pair, tmp_path):
    """In every file of the newest checkpoint; many in the large ones, where orbax alone restores wrong arrays in silence."""
    rng, said = random.Random(7), []
    in_arrays, in_facts = (largest(pair / "20" / folder).relative_to(pair) for folder in ("arrays", "facts"))
    for part in parts(pair):
        size = (pair / part).stat().st_size
        many = part in (in_arrays, in_facts)
        for number in range(40 if many else 3 if size else 0):
            folder = shutil.copytree(pair, tmp_path / f"{len(said)}" / "checkpoints")
            flip(folder / part, rng.randrange(8 * size))
            said.append((part, number, assert_taken_or_left(folder, harmful=False)))
            shutil.rmtree(folder.parent)
    reasons = [lines[0] for _, _, lines in said if lines]
    # Most of the largest file is arrays of random bits, of which none can change without changing a value.
    assert sum(bool(lines) for part, _, lines in said if part == in_arrays) > 20
    # Arrays that were read without an error, and were wrong.
    assert any("the digest of state/" in reason for reason in reasons)
    assert any("the digest of its facts differs" in reason for reason in reasons)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "deleted", "zeroed"])
def test_a_broken_file(pair, tmp_path, damage):
    rng = random.Random(8)
    for number, part in enumerate(parts(pair)):
        folder = shutil.copytree(pair, tmp_path / str(number) / "checkpoints")
        size = (folder / part).stat().st_size
        if damage == "deleted":
            (folder / part).unlink()
        elif damage == "zeroed":
            (folder / part).write_bytes(bytes(size))
        else:
            # The last bytes of a file of arrays may be an index that a later one replaces: half of it is never enough.
            kept = rng.randrange((size + 1) // 2) if damage == "truncated" else 0
            (folder / part).write_bytes((folder / part).read_bytes()[:kept])
        # Nothing can be restored without the arrays and the facts.
        harmful = part in (largest(pair / "20").relative_to(pair), largest(pair / "20/facts").relative_to(pair))
        assert_taken_or_left(folder, harmful)


def test_one_flipped_bit_of_every_array(tmp_path, monkeypatch):
    """The digest alone: what is restored is sound to orbax, and differs in the last bit of one array from what was saved."""
    arrays = len(jax.tree.leaves((state(20), records(20))))
    digest = checkpoint._digest
    for wrong in range(arrays):
        seen = []

        def digest_of_another(array, seen=seen, wrong=wrong):
            seen.append(None)
            if len(seen) - 1 != wrong:
                return digest(array)
            data = bytearray(array.tobytes())
            data[-1] ^= 1
            return digest(np.frombuffer(bytes(data), array.dtype).reshape(array.shape))

        folder = tmp_path / str(wrong) / "checkpoints"
        checkpoints = Checkpoints(folder, TIES, pytest.fail)
        checkpoints.save(10, state(10), records(10))
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "_digest", digest_of_another)
            checkpoints.save(20, state(20), records(20))
        checkpoints.close()
        assert len(seen) == arrays
        assert "the digest of" in assert_taken_or_left(folder, harmful=True)[0]


def test_saving_goes_on_after_a_damaged_checkpoint(pair, tmp_path):
    """Also at the very step that was damaged, which orbax would refuse in silence."""
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    largest(folder / "20").unlink()
    found, said = restored(folder, step_saved=20)
    assert_same_checkpoint(found, 10)
    assert len(said) == 1
    found, said = restored(folder)
    assert_same_checkpoint(found, 20)
    assert said == []


def test_all_damaged(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    for step in (10, 20):
        largest(folder / str(step)).unlink()
    found, said = restored(folder, step_saved=3)
    assert found is None
    assert [str(folder / step) in line for step, line in zip(("20", "10"), said, strict=True)] == [True, True]
    assert said[0].endswith("taking the one before it")
    assert said[1].endswith("there is none before it")
    assert steps(folder.parent) == [3]


def test_ties_are_saved_beside_the_arrays(pair):
    facts = json.loads(largest(pair / "20/facts").read_text())
    assert facts["content"]["ties"] == [dataclasses.asdict(tie) for tie in TIES]


OTHER_TIES = [
    [],
    [Tie("head/embedding", "embed/embedding")],
    [Tie("embed/embedding", "head/embedding", transform="transpose")],
    [*TIES, Tie("head/bias", "embed/bias")],
]


@pytest.mark.parametrize("ties", OTHER_TIES, ids=["none", "reversed", "transposed", "one more"])
def test_checkpoint_of_other_ties_is_refused_and_kept(pair, tmp_path, ties):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    before = tree(folder)
    with pytest.raises(CheckpointMismatch, match=r"20 has the ties .*embed/embedding"):
        restored(folder, ties=ties)
    assert tree(folder) == before
    assert not (folder.parent / "damaged").exists()


@pytest.mark.parametrize(
    "like",
    [
        {**state(0), "count": jnp.float32(0)},
        {**state(0), "half": jnp.zeros((3, 2), jnp.bfloat16)},
        {**state(0), "more": jnp.zeros(3)},
        {"count": jnp.int32(0)},
    ],
    ids=["dtype", "shape", "one more", "fewer"],
)
def test_checkpoint_of_other_arrays_is_refused_and_kept(pair, tmp_path, like):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    before = tree(folder)
    with pytest.raises(CheckpointMismatch, match=r"arrays|array \d+ is"):
        restored(folder, like=like)
    assert tree(folder) == before
