"""Checkpoints of a small state: damage is detected, moved aside and reported in one line; other runs are refused."""

import dataclasses
import json
import os
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from damage import flip, largest, steps
from processes import end, start_python, tree

from tiejax.lab.runs.checkpoints import quiet_libraries
from tiejax.training import Checkpoints, checkpoint
from tiejax.training.checkpoint import CheckpointMismatch
from tiejax.tying import Scale, Tie, TieError

TIES = [Tie("embed/embedding", "head/embedding")]


def state(step):
    """Return arrays of several dtypes and shapes, some with random bits, different for every step."""
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


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a folder with the checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("pair") / "checkpoints"
    checkpoints = Checkpoints(folder, TIES, pytest.fail)
    for step in (5, 10, 20):
        checkpoints.save(step, state(step), records(step))
    checkpoints.close()
    return folder


def restored(folder, step_saved=None, ties=TIES, like=None):
    """Restore the newest undamaged checkpoint, then optionally save and restore another; return the first, and messages."""
    messages = []
    quiet_libraries()
    checkpoints = Checkpoints(folder, ties, messages.append)
    try:
        found = checkpoints.restore(state(0) if like is None else like)
        if step_saved is not None:
            checkpoints.save(step_saved, state(step_saved), records(step_saved))
            assert_same_checkpoint(checkpoints.restore(state(0)), step_saved)
    finally:
        checkpoints.close()
    return found, messages


def test_ties_with_weights_and_values_are_the_same_after_a_restart(tmp_path):
    ties = [Tie("a", "b", gradient=(1.0, 0.25)), Tie("a", "c", transform=["transpose", Scale(0.5)])]
    checkpoints = Checkpoints(tmp_path / "checkpoints", ties, pytest.fail)
    checkpoints.save(5, state(5), records(5))
    checkpoints.close()
    assert_same_checkpoint(restored(tmp_path / "checkpoints", ties=ties)[0], 5)
    with pytest.raises(CheckpointMismatch, match="has other ties than this run"):
        restored(tmp_path / "checkpoints", ties=[dataclasses.replace(ties[0], gradient=(1.0, 0.5)), ties[1]])
    with pytest.raises(TieError, match="a pair of functions cannot be written to JSON"):
        Checkpoints(tmp_path / "others", Tie("a", "b", transform=(jnp.exp, jnp.log)), pytest.fail)
    assert not (tmp_path / "others").exists()


def test_checkpoints_keep_the_two_newest(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    assert steps(folder.parent) == [10, 20]
    found, messages = restored(folder)
    assert_same_checkpoint(found, 20)
    assert messages == []
    assert not (folder.parent / "damaged").exists()


def test_no_checkpoint(tmp_path):
    assert restored(tmp_path / "checkpoints") == (None, [])


def assert_taken_or_left(folder, harmful):
    """Check that the newest checkpoint is restored without a message, or the previous one with one line about the newest."""
    found, messages = restored(folder)
    if messages:
        assert len(messages) == 1
        assert len(messages[0].splitlines()) == 1
        assert f"{folder / '20'} is damaged (" in messages[0]
        assert messages[0].endswith("; using the previous one")
        assert_same_checkpoint(found, 10)
        assert (folder.parent / "damaged" / "20").is_dir()
        assert not (folder / "20").exists()
    else:
        assert_same_checkpoint(found, 20)
        assert not harmful
    return messages


def parts(pair):
    return sorted(path.relative_to(pair) for path in (pair / "20").rglob("*") if path.is_file())


@pytest.mark.slow
def test_one_flipped_bit(pair, tmp_path):
    """One at a time in every file, many in the large files, where orbax restores wrong arrays without an error."""
    rng, messages = random.Random(7), []
    in_arrays, in_facts = (largest(pair / "20" / folder).relative_to(pair) for folder in ("arrays", "facts"))
    for part in parts(pair):
        size = (pair / part).stat().st_size
        many = part in (in_arrays, in_facts)
        for number in range(40 if many else 3 if size else 0):
            folder = shutil.copytree(pair, tmp_path / f"{len(messages)}" / "checkpoints")
            flip(folder / part, rng.randrange(8 * size))
            messages.append((part, number, assert_taken_or_left(folder, harmful=False)))
            shutil.rmtree(folder.parent)
    reasons = [lines[0] for _, _, lines in messages if lines]
    # Most of the largest file is random bits: any change there changes a value.
    assert sum(bool(lines) for part, _, lines in messages if part == in_arrays) > 20
    # Arrays that orbax read without an error, but wrongly.
    assert any("the digest of state/" in reason for reason in reasons)
    assert any("the digest of its metadata differs" in reason for reason in reasons)


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
            # The last bytes of a file of arrays may be an obsolete index; half of the file is never enough.
            length = rng.randrange((size + 1) // 2) if damage == "truncated" else 0
            (folder / part).write_bytes((folder / part).read_bytes()[:length])
        # Nothing can be restored without the arrays and the facts.
        harmful = part in (largest(pair / "20").relative_to(pair), largest(pair / "20/facts").relative_to(pair))
        assert_taken_or_left(folder, harmful)


def test_one_flipped_bit_of_every_array(tmp_path, monkeypatch):
    """Digests alone: orbax restores without an error, but the last bit of one array differs from the digest."""
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


def test_saving_after_a_damaged_checkpoint(pair, tmp_path):
    """At the step that was damaged, which orbax alone would refuse without a message."""
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    largest(folder / "20").unlink()
    found, messages = restored(folder, step_saved=20)
    assert_same_checkpoint(found, 10)
    assert len(messages) == 1
    found, messages = restored(folder)
    assert_same_checkpoint(found, 20)
    assert messages == []


def test_all_damaged(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    for step in (10, 20):
        largest(folder / str(step)).unlink()
    found, messages = restored(folder, step_saved=3)
    assert found is None
    assert [str(folder / step) in line for step, line in zip(("20", "10"), messages, strict=True)] == [True, True]
    assert messages[0].endswith("using the previous one")
    assert messages[1].endswith("there is no previous one")
    assert steps(folder.parent) == [3]


def test_ties_are_saved_with_the_arrays(pair):
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
    with pytest.raises(CheckpointMismatch, match=r"20 has other ties than this run: .*embed/embedding"):
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
    with pytest.raises(CheckpointMismatch, match=r"arrays|array/\d+: expected"):
        restored(folder, like=like)
    assert tree(folder) == before


def opened(folder, run="", read_only=False):
    messages = []
    quiet_libraries()
    return Checkpoints(folder, TIES, messages.append, run, read_only=read_only), messages


def test_checkpoint_of_another_run_is_refused_and_kept(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    checkpoints, _ = opened(folder, "one")
    checkpoints.save(10, state(10), records(10))
    assert_same_checkpoint(checkpoints.restore(state(0)), 10)
    checkpoints.close()
    before = tree(folder)
    checkpoints, messages = opened(folder, "another")
    with pytest.raises(CheckpointMismatch, match="10 belongs to another run"):
        checkpoints.restore(state(0))
    checkpoints.close()
    assert (tree(folder), messages) == (before, [])


def test_renamed_checkpoint_is_damaged(pair, tmp_path):
    """As if copied by hand to look like a later one."""
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    (folder / "20").rename(folder / "30")
    found, messages = restored(folder)
    assert_same_checkpoint(found, 10)
    assert len(messages) == 1
    assert "30 is damaged (its metadata are those of step 20)" in messages[0]


def test_reader_changes_nothing(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    largest(folder / "20").unlink()
    before = tree(folder.parent)
    checkpoints, messages = opened(folder, read_only=True)
    assert_same_checkpoint(checkpoints.restore(state(0)), 10)
    checkpoints.close()
    assert len(messages) == 1
    assert "using the previous one" in messages[0]
    assert tree(folder.parent) == before


def test_pipe_in_a_checkpoint_is_damage_and_is_not_read(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    (metadata,) = (folder / "20" / "facts").glob("metadata")
    metadata.unlink()
    os.mkfifo(metadata)
    checkpoints, messages = opened(folder, read_only=True)
    assert_same_checkpoint(checkpoints.restore(state(0)), 10)
    checkpoints.close()
    assert messages == [f"checkpoint {folder / '20'} is damaged (facts/metadata is not a file); using the previous one"]


def test_reader_retries_if_a_checkpoint_is_pruned_meanwhile(pair, tmp_path, monkeypatch):
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    checkpoints, messages = opened(folder, read_only=True)
    read = Checkpoints._read

    def and_pruned(self, step, *given):
        if step == 20 and (folder / "20").exists():
            writer = Checkpoints(folder, TIES, pytest.fail)
            for newer in (30, 40):
                writer.save(newer, state(newer), records(newer))
            writer.close()
        return read(self, step, *given)

    monkeypatch.setattr(Checkpoints, "_read", and_pruned)
    assert_same_checkpoint(checkpoints.restore(state(0)), 40)
    assert messages == []
    assert steps(folder.parent) == [30, 40]


@pytest.mark.slow
def test_system_errors_name_the_checkpoint(tmp_path):
    """With a limit on file sizes in place of a full disk; the checkpoint before stays, and can be restored."""
    code = """
import resource, sys
from pathlib import Path
import jax.numpy as jnp
from tiejax.training import Checkpoints
folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder, [], print)
checkpoints.save(1, {"w": jnp.zeros(4)}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoints.save(2, {"w": jnp.arange(40_000)}, {})
except OSError as error:
    print(error.filename, error.strerror)
print(checkpoints.restore({"w": jnp.zeros(4)})[0])
"""
    ended = end(start_python("-c", code, tmp_path / "checkpoints"))
    assert ended.out == f"{tmp_path / 'checkpoints' / '2'} File too large\n1\n", ended


def test_other_system_errors_are_not_damage(pair, tmp_path, monkeypatch):
    """For example too many open files: the next attempt may succeed."""
    folder = shutil.copytree(pair, tmp_path / "run" / "checkpoints")
    before = tree(folder)
    checkpoints, messages = opened(folder)

    def too_many(*args):
        raise ValueError("Error opening file [os_error_code='24']")

    monkeypatch.setattr(Checkpoints, "_read", too_many)
    with pytest.raises(OSError, match="Too many open files") as error:
        checkpoints.restore(state(0))
    assert error.value.filename == str(folder / "20")
    checkpoints.close()
    assert (tree(folder), messages) == (before, [])


@pytest.mark.parametrize("saved", [jnp.bfloat16, jnp.float8_e4m3fn])
def test_another_dtype_of_the_same_width_is_refused(tmp_path, saved):
    """Types that numpy does not know are not reinterpreted as others."""
    checkpoints, _ = opened(tmp_path / "checkpoints")
    checkpoints.save(1, {"w": jnp.asarray([1.5, -2, 3.25], saved)}, {})
    like = {"w": jax.ShapeDtypeStruct((3,), jnp.float16 if saved == jnp.bfloat16 else jnp.float8_e5m2)}
    with pytest.raises(CheckpointMismatch, match=f"expected {like['w'].dtype} .*, got {jnp.dtype(saved)}"):
        checkpoints.restore(like)
    assert checkpoints.restore({"w": jnp.ones(3, saved)})[1]["w"].tolist() == [1.5, -2, 3.25]
    checkpoints.close()


def test_numbers_of_python_are_read_back_and_other_types_leave_the_files(tmp_path):
    checkpoints, messages = opened(tmp_path / "run" / "checkpoints")
    checkpoints.save(1, {"n": 3, "x": np.int32(4)}, {})
    assert checkpoints.restore({"n": 0, "x": np.int32(0)})[1] == {"n": 3, "x": 4}
    with pytest.raises(CheckpointMismatch, match=r"expected int64 \(\), got int32 \(\)"):
        checkpoints.restore({"n": 0, "x": 0})
    checkpoints.close()
    assert (steps(tmp_path / "run"), messages) == ([1], [])


def test_arrays_without_entries(tmp_path):
    """Orbax does not write them."""
    checkpoints, messages = opened(tmp_path / "run" / "checkpoints")
    state = {"w": jnp.ones(2), "none": jnp.zeros((0, 4), jnp.bfloat16)}
    rows = {"all": {"x": np.zeros((3, 0))}, "some": {"x": np.zeros((3, 0), np.int32), "y": np.ones(3)}}
    checkpoints.save(1, state, rows)
    _, found, records = checkpoints.restore(state)
    for one, other in ((found, state), (records, rows)):
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), other
        )
    assert records["some"]["y"].tolist() == [1, 1, 1]
    checkpoints.close()
    assert messages == []


def test_damaged_checkpoints_of_one_step_are_all_kept(tmp_path):
    run = tmp_path / "run"
    for _ in range(2):
        checkpoints, _ = opened(run / "checkpoints")
        checkpoints.save(1, state(1), records(1))
        largest(run / "checkpoints" / "1").unlink()
        assert checkpoints.restore(state(0)) is None
        checkpoints.close()
    assert sorted(path.name for path in (run / "damaged").iterdir()) == ["1", "1.1"]


def test_at_least_one_checkpoint_is_kept(tmp_path):
    with pytest.raises(ValueError, match="keep: expected at least 1 checkpoint, got 0"):
        Checkpoints(tmp_path / "checkpoints", TIES, pytest.fail, keep=0)
    assert not (tmp_path / "checkpoints").exists()
