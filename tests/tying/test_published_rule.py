"""The published rule of ties, step by step, against lists written by hand; and the table that explains it."""

from tiejax import tying
from tiejax.tying import published_rule

ACTIONS = ((2, 2), (3, 2), (2, 0), (2, 2), (3, 3))  # a layer, and what it copies


def test_the_published_rule_step_by_step():
    ties = tying.start_ties(4, "frozen-random", "published")
    after = []
    for layer, choice in ACTIONS:
        ties = tying.choose(ties, layer, choice, "published")
        wiring = tying.wiring(ties, "compact", "owner", "published")
        after.append((ties.owner.tolist(), wiring.sends.tolist(), wiring.trained.tolist(), ties.observation.tolist()))
    assert after == [
        ([0, 1, 2, 3], [True, False, True, False], [1, 0, 1, 0], [0, 0, 2, 0]),
        # 3 copies 2: only 2's own position trains the weights.
        ([0, 1, 2, 2], [True, False, True, False], [1, 0, 1], [0, 0, 2, 2]),
        # 2 copies 0, and 3 stays with the old weights, which nobody trains.
        ([0, 1, 0, 2], [True, False, False, False], [1, 0, 0], [0, 0, 0, 2]),
        # "Independent" trains again, but what is shared stays shared and is updated twice.
        ([0, 1, 0, 2], [True, False, True, False], [2, 0, 0], [0, 0, 2, 2]),
        ([0, 1, 0, 2], [True, False, True, True], [2, 0, 1], [0, 0, 2, 3]),
    ]


def test_copies_of_the_first_layer_do_not_train_where_all_start_tied():
    ties = tying.start_ties(3, "tied", "published")
    wiring = tying.wiring(ties, "full", "owner", "published")
    assert ties.owner.tolist() == ties.observation.tolist() == [0, 0, 0]
    assert (wiring.sends.tolist(), wiring.trained.tolist()) == ([True, False, False], [1, 0, 0])


def cells(ties, wiring):
    """The four columns of the table for the ties by one rule."""
    rows = ties.owner, ("T" if trains else "." for trains in ties.trains), ties.observation, wiring.trained
    return ["".join(map(str, row)) for row in rows]


def test_the_table_that_explains_the_rule_is_what_both_rules_do():
    lines = [line.split() for line in (published_rule.__doc__ or "").splitlines() if line.startswith("    ")]
    published, resolved = (tying.start_ties(4, "frozen-random", rule) for rule in ("published", "resolved"))
    table = []
    for action in (None, *ACTIONS):
        if action is not None:
            published, resolved = tying.choose(published, *action, "published"), tying.choose(resolved, *action, "resolved")
        wiring = tying.wiring(published, "full", "owner", "published")
        table.append([*cells(published, wiring), *cells(resolved, tying.wiring(resolved, "full", "all", "resolved"))])
    assert [line[-8:] for line in lines[2:]] == table
    words = ["start", *(f"{layer} {'is independent' if layer == choice else f'copies {choice}'}" for layer, choice in ACTIONS)]
    assert [" ".join(line[:-8]) for line in lines[2:]] == words
