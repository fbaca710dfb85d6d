r"""Plateaus of the exact loss, derived from the task: the losses of predictors that know only a part of the context.

A predictor that distinguishes contexts only by some function g of them has at best the conditional distribution of the target
given g, and the loss

    sum_c w_c sum_s p(s | c) ln(1 / q(s | g(c))),    q(s | g) = sum_{c: g(c) = g} w_c p(s | c) / sum_{c: g(c) = g} w_c,

where w_c are the probabilities of the contexts of the training split. Each g below is something that a model which reads a
multiset of symbols can fail to distinguish. The levels are computed from the contexts; no loss of a run enters them.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.special

from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, Contexts, all_contexts, count_contexts
from tiejax.lab.studies.exor.task import EXor

WITHIN = 0.03  # nats: a model is on a plateau if its loss is at most so far from the level
SAME = 0.02  # nats: levels closer than this are one plateau
NONE = "none"


@dataclasses.dataclass(frozen=True)
class Level:
    """A plateau. knows: what its predictor knows. loss: its exact cross-entropy on the training split.

    also: what other predictors know whose losses are so near that records cannot tell them apart.
    """

    knows: str
    loss: float
    also: tuple[str, ...] = ()


def levels(task: EXor) -> list[Level]:
    """Return the plateaus of a task, by ascending loss, from the Bayes predictor to the frequencies of the symbols.

    Predictors less than .02 nat above the lowest loss of a plateau belong to it; the first in the order of `predictors`
    gives it its name and loss. None if the contexts of the task are too many.
    """
    if count_contexts(task, ordered=False) > MAX_CONTEXTS:
        return []
    known = list(predictors(task, all_contexts(task, ordered=False)))
    groups: list[list[int]] = []  # places in `known`
    for place in sorted(range(len(known)), key=lambda place: known[place][1]):
        if groups and known[place][1] - known[groups[-1][0]][1] < SAME:
            groups[-1].append(place)
        else:
            groups.append([place])
    levels = [[known[place] for place in sorted(group)] for group in groups]
    return [Level(*first, tuple(knows for knows, _ in others)) for first, *others in levels]


def predictors(task: EXor, contexts: Contexts) -> Iterator[tuple[str, float]]:
    """Yield what each predictor knows, and its loss on the training split.

    Parity is the last symbol of the context; set bits is the number of visible symbols that spell 1, others the number of
    those that spell 0. A predictor may ignore a spelling, count it as a spelling of the other bit (it then knows the number of
    the remaining ones), or find large or small counts alike.
    """
    weight = np.asarray(contexts.weight[0])
    target = np.asarray(contexts.target)
    names = task.names
    number = {symbol: (contexts.tokens == symbol).sum(1) for symbol in task.asked}
    ones = np.sum([number[symbol] for symbol in task.used["one"]], axis=0)
    zeros = np.sum([number[symbol] for symbol in task.used["zero"]], axis=0)
    odd = (contexts.tokens == task.odd).any(1)
    kinds = np.array([len(task.used["zero"]), len(task.used["one"])])

    def loss(*known: np.ndarray) -> float:
        return conditional_loss(weight, target, known)

    yield "the bit and its spellings (Bayes)", loss(odd, ones)
    yield "only the frequencies of the symbols", loss()
    yield "parity alone", loss(odd)
    yield "set bits alone", loss(ones)
    yield "the bit, with all its spellings equally likely", float(weight @ np.log(kinds[contexts.bit]))
    for bit, sign in (("zero", -1), ("one", 1)):
        for symbol in task.used[bit] if len(task.used[bit]) > 1 else ():
            yield f"parity and set bits less others, {names[symbol]} ignored", loss(odd, ones - zeros - sign * number[symbol])
            others = [s for s in task.used[bit] if s != symbol]
            counted = np.sum([number[s] for s in others], axis=0)
            yield f"parity and the number of {' and '.join(names[s] for s in others)}", loss(odd, counted)
    for most in range(task.bits - 2, 0, -1):
        yield f"parity and set bits, {most} or more alike", loss(odd, np.minimum(ones, most))
        least = task.bits - 1 - most
        yield f"parity and set bits, {least} or fewer alike", loss(odd, np.maximum(ones, least))


def conditional_loss(weight: np.ndarray, target: np.ndarray, known: Sequence[np.ndarray]) -> float:
    """Return the loss of the predictor that distinguishes contexts only by the values of `known`, each `[contexts]`.

    weight: probability of each context. target: probability of each symbol, `[contexts, vocabulary]`.
    """
    values = np.stack([np.zeros(len(weight), int), *(np.asarray(each, int) for each in known)], 1)
    group = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    joint = np.zeros((group.max() + 1, target.shape[1]))
    np.add.at(joint, group, weight[:, None] * target)
    mass = joint.sum(1, keepdims=True)
    share = np.divide(joint, mass, out=np.zeros_like(joint), where=mass > 0)
    return float(-scipy.special.xlogy(joint, share).sum())


def assign(losses: np.ndarray, by_loss: Sequence[Level]) -> np.ndarray:
    """Return the place of each loss's level in `by_loss`: the nearest one within .03 nat; -1 if there is none."""
    distance = np.abs(np.asarray(losses, float)[..., None] - np.array([level.loss for level in by_loss]))
    distance = np.where(np.isnan(distance), np.inf, distance)
    return np.where(distance.min(-1) <= WITHIN, distance.argmin(-1), -1)


def table(losses: np.ndarray, by_loss: Sequence[Level], arms: Sequence[str]) -> dict[str, Any]:
    """Return the entry `plateaus` of results.json: how many members are on each plateau at the end.

    By arm, `members`: the number on each level, with those on none last. losses: exact cross-entropy on the training split,
    `[arm, seed]`; a loss that is not finite is on no plateau. by_loss: as returned by `levels`.
    """
    on = assign(losses, by_loss)
    return {
        "levels": [dataclasses.asdict(level) for level in by_loss],
        "within": WITHIN,
        "members": {
            name: [int((on[arm] == level).sum()) for level in (*range(len(by_loss)), -1)] for arm, name in enumerate(arms)
        },
    }
