"""Rows, slots, padding, steps and devices planned from the lengths of the sentences."""

import numpy as np
import pytest

from tiejax.pretraining.step_plan import devices_of_member, plan_steps
from tiejax.text.masking import slots_for
from tiejax.text.packing import rows_for

LENGTHS = np.array([10, 6, 6, 4])  # packed into rows of 12: 10 and 6 + 6 and 4


def test_number_of_packed_rows():
    # 12 sentences of 6.5 tokens on average are 78 tokens, 6.5 rows; 26 tokens in three rows.
    assert rows_for(LENGTHS, 12, row_length=12) == 6
    plan = plan_steps(LENGTHS, 6, row_length=12, packed=True, mesh=1, epochs=2.0)
    assert plan.tokens == pytest.approx(6 * 26 / 3)
    assert plan.padding == pytest.approx(1 - 26 / 36)
    assert plan.steps == 1  # two epochs are 52 tokens, as many as one step
    assert plan_steps(LENGTHS, 6, 12, packed=True, mesh=1, epochs=20).steps == 10


def test_padded_rows():
    plan = plan_steps(LENGTHS, 3, row_length=12, packed=False, mesh=2, steps=7)
    assert (plan.steps, plan.rows, plan.rows_of_device) == (7, 3, 2)
    assert plan.tokens == pytest.approx(3 * 6.5)
    # Rows have 8, 4, 4 and 2 maskable tokens: mean 4.5, variance 4.75. A device has two of the rows.
    assert plan.slots == slots_for(2 * 4.5, 2 * 4.75, 24)


def test_epochs_apart():
    """Four sentences in batches of three: a batch of 3 and one of 1, six steps in three epochs, 26 tokens in two steps."""
    plan = plan_steps(LENGTHS, rows=3, row_length=12, packed=False, mesh=1, epochs=3.0, epochs_apart=True)
    assert (plan.steps, plan.epoch, plan.rows) == (6, 2, 3)
    assert plan.tokens == pytest.approx(26 / 2)
    assert plan.padding == pytest.approx(1 - 26 / (6 * 12))
    # Otherwise the twelve visits fill four steps, the second of which spans two epochs.
    joined = plan_steps(LENGTHS, 3, 12, packed=False, mesh=1, epochs=3.0)
    assert (joined.steps, joined.epoch, joined.slots) == (4, None, plan.slots)


@pytest.mark.parametrize(
    ("members", "devices", "local", "expected"),
    [
        (1, 1, 1, 1), (1, 8, 8, 8), (2, 8, 8, 4), (8, 8, 8, 1), (3, 8, 8, 8), (16, 8, 8, 1), (1, 2, 1, 2), (6, 6, 6, 1),
        (4, 6, 6, 3),
    ],
)  # fmt: skip
def test_default_number_of_devices_per_member(members, devices, local, expected):
    assert devices_of_member(members, devices, local) == expected


@pytest.mark.parametrize(
    ("members", "devices", "local", "expected"), [(1, 8, 8, 1), (3, 2, 2, 1), (4, 8, 8, 1), (1, 2, 1, 2), (1, 4, 2, 1)]
)
def test_cpu_devices_of_a_process_do_not_share_a_member_by_default(members, devices, local, expected):
    """Collectives between processes are safe: each process waits in a thread of its own."""
    assert devices_of_member(members, devices, local, platform="cpu") == expected
    assert devices_of_member(1, 8, 8, 4, platform="cpu") == 4


def test_unsuitable_numbers_of_devices():
    assert devices_of_member(1, 8, 8, 2) == 2
    with pytest.raises(ValueError, match=r"^mesh: 3 devices per member do not fit 8 devices; expected one of 1, 2, 4, 8$"):
        devices_of_member(1, 8, 8, 3)
    # Processes of 3 devices have whole members or an equal part of one: neither is possible with 2.
    with pytest.raises(ValueError, match=r"expected one of 1, 3, 6$"):
        devices_of_member(1, 6, 3, 2)
