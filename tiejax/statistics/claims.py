"""Claims about paired differences over seeds, tested together by family, each with a verdict.

Everything that is reported about a claim is about one estimand: its estimate, p-value, intervals and verdict. Verdicts are
those of Holm's method. The adjusted intervals of a family are two-sided and have one common level, that of Bonferroni's
method: all of them contain their means with a probability of at least 95 %, and a claim is decided if its interval excludes 0,
or lies inside or outside its margin (but may be decided although its interval does not).
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tiejax.statistics.holm import holm, holm_factors
from tiejax.statistics.mean_tests import MOST_SEEDS, SKEWED, VERY_SKEWED, MeanTest, mean_tests
from tiejax.statistics.power import POWER, seeds_needed, smallest_detectable
from tiejax.statistics.proportions import mcnemar, newcombe
from tiejax.statistics.sign_flips import is_constant

SIGNIFICANCE = 0.05
NEXT_TO_0 = 1e-6  # end of an interval that excludes 0 by a hair
Kind = Literal["mean", "proportion", "time"]
Goal = Literal["difference", "equivalence", "non-inferiority"]
Family = Literal["registered", "exploratory"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about the mean of paired differences, one per seed.

    Attributes:
        id: `claim/part`.
        statement: The claim as a sentence.
        estimand: The estimated quantity, in words.
        differences: One difference per seed. What a seed has several of (pairs of words, layers, tokens) is averaged first.
        sign: The claimed sign, 1 or -1; 0 for equivalence. Non-inferiority with sign 1 claims that the mean is above -margin,
            with sign -1 that it is below margin.
        kind: `mean`; `proportion`, for yes-or-no outcomes; or `time`, for times until an event that are cut at the end of the
            run, whose mean is a restricted mean.
        goal: `difference`, `equivalence` or `non-inferiority`.
        family: `registered` claims are fixed before a run and tested together; `exploratory` ones are estimated, not tested.
        unit: Unit of the differences.
        margin: Margin of equivalence or non-inferiority. For `difference`, the smallest difference of interest, from which the
            number of seeds needed is computed.
        outcomes: For `proportion`, the yes-or-no outcomes of both arms; the differences are first - second.
        one_arm: Whether the differences are between quantities of one arm. An exchange of arms then has no meaning, and nothing
            makes the differences symmetric if the claim is false.
        replaced: Which differences stand for undefined ones, such as those of diverged models: they have a rank, but no size,
            so that with any of them no difference is shown to lie within a margin. None: no difference.
    """

    id: str
    statement: str
    estimand: str
    differences: np.ndarray
    sign: int
    kind: Kind = "mean"
    goal: Goal = "difference"
    family: Family = "registered"
    unit: str = ""
    margin: float | None = None
    outcomes: tuple[np.ndarray, np.ndarray] | None = None
    one_arm: bool = False
    replaced: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, choices in (("kind", Kind), ("goal", Goal), ("family", Family)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(
                    f"claim {self.id}: {name}: expected {', '.join(get_args(choices))}, got {getattr(self, name)!r}"
                )
        if self.sign not in (-1, 0, 1):
            raise ValueError(f"claim {self.id}: expected sign -1, 0 or 1, got {self.sign}")
        if self.margin is not None and not self.margin > 0:
            raise ValueError(f"claim {self.id}: expected a margin > 0, got {self.margin}")
        differences = np.asarray(self.differences, float)
        object.__setattr__(self, "differences", differences)
        if differences.ndim != 1:
            raise ValueError(f"claim {self.id}: expected one difference per seed, got an array of shape {differences.shape}")
        if self.replaced is not None:
            object.__setattr__(self, "replaced", np.broadcast_to(np.asarray(self.replaced, bool), differences.shape))
        if self.outcomes is not None:
            outcomes = tuple(_yes_or_no(self.id, outcomes) for outcomes in self.outcomes)
            object.__setattr__(self, "outcomes", outcomes)
            if not np.array_equal(outcomes[0].astype(float) - outcomes[1], differences):
                raise ValueError(f"claim {self.id}: expected differences that are the first outcomes less the second")
        if (self.goal == "equivalence") != (self.sign == 0):
            raise ValueError(f"claim {self.id}: expected sign 0 for equivalence and 1 or -1 otherwise, got {self.sign}")
        if self.goal != "difference" and self.margin is None:
            raise ValueError(f"claim {self.id}: {self.goal} needs a margin > 0, got {self.margin}")
        if self.kind == "proportion" and self.outcomes is None:
            raise ValueError(f"claim {self.id}: a proportion needs the outcomes of both arms")

    @classmethod
    def proportion(
        cls, id: str, statement: str, estimand: str, first: np.ndarray, second: np.ndarray, sign: int, **fields: Any
    ) -> "Claim":
        """Return a claim about the difference of two proportions, first - second, from yes-or-no outcomes by seed."""
        outcomes = _yes_or_no(id, first), _yes_or_no(id, second)
        if outcomes[0].shape != outcomes[1].shape:
            shapes = " and ".join(str(of_arm.shape) for of_arm in outcomes)
            raise ValueError(f"claim {id}: expected outcomes of the same seeds in both arms, got shapes {shapes}")
        differences = outcomes[0].astype(float) - outcomes[1]
        fields = {"unit": "share of seeds"} | fields
        return cls(id, statement, estimand, differences, sign, kind="proportion", outcomes=outcomes, **fields)

    @property
    def outcomes_of_arms(self) -> tuple[np.ndarray, np.ndarray]:
        """The outcomes of a proportion."""
        assert self.outcomes is not None
        return self.outcomes

    @property
    def some_replaced(self) -> bool:
        """Whether any difference stands for an undefined one."""
        return self.replaced is not None and bool(self.replaced.any())

    @property
    def sides(self) -> int:
        """Number of sides of the test: 2 for a difference, 1 for a margin."""
        return 2 if self.goal == "difference" else 1


def _yes_or_no(claim: str, outcomes: Any) -> np.ndarray:
    values = np.asarray(outcomes)
    if values.dtype == object and all(isinstance(value, bool | np.bool_) for value in values.ravel()):
        values = values.astype(bool)
    if not (values.dtype == bool or (values.dtype.kind in "iuf" and np.isin(values, (0, 1)).all())):
        raise ValueError(
            f"claim {claim}: a proportion has outcomes that are true or false, 1 or 0; got {values.dtype}, {values!r:.60}"
        )
    return values.astype(bool)


class Rows(list[dict[str, Any]]):
    """The rows of claims, which print as a table; a list otherwise."""

    def __str__(self) -> str:
        columns = ("claim", "estimate", "95 % interval", "adjusted p", "n", "verdict")
        lines = [columns, *(tuple(map(str, _cells(row))) for row in self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # of IPython
        printer.text(str(self))


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    def short(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    interval = "-" if row["interval"] is None else " to ".join(map(short, row["interval"]))
    return row["id"], short(row["estimate"]), interval, short(row["p_adjusted"]), row["n"], row["verdict"]


def repeated_id(claims: Sequence[Claim]) -> str | None:
    """Return an id that two claims have, None if all differ."""
    return next((name for name, number in Counter(claim.id for claim in claims).items() if number > 1), None)


def assess(claims: Sequence[Claim], looks: int = 1) -> Rows:
    """Test the registered claims, adjusted for the family by Holm's method, and return a row with a verdict for every claim.

    Differences of means and of restricted means have a two-sided test, differences of proportions McNemar's exact test, and
    margins one-sided tests (equivalence: two of them, D. J. Schuirmann, J. Pharmacokin. Biopharm. 15 (1987) 657-680). Means
    are tested by sign flips and, if the differences are skewed or of one arm, by bootstrap-t as well (see `mean_tests`). A
    verdict is `supported` or `contradicted` if the adjusted p is at most .05, otherwise `undecided`; `exploratory` claims have
    no p and no verdict. Registered differences with a margin are also tested for equivalence, in a second family.

    Args:
        claims: The claims of one study.
        looks: Number of times that the claims are tested as seeds are added; each test has an equal share of .05.

    Returns:
        For each claim a row of results.json: `id`, `statement`, `family`, `kind`, `goal`, `sign`, `estimand`, `unit`,
        `differences`, `outcomes` (of both arms, for a proportion), `n`, `estimate`, `interval` (95 %), `interval_adjusted` and
        its `adjusted_level`, `p`, `p_adjusted`, `skewness` of the differences if it decides how they are tested, `margin`,
        `equivalence` (for a difference, `p`, `p_adjusted`, `verdict` and `look` of the claim that its mean is closer to 0 than
        the margin), `smallest_detectable` and `seeds_needed` (see `power`), `look` and `last_look` (the number of seeds),
        `verdict`, `note`, `one_arm`. Fields that are not defined are None, as are infinite ends of an interval.
    """
    tests = _tests(claims)
    rows = Rows()
    decided, equivalent = _decide(claims, tests, looks), _equivalences(claims, tests, looks)
    for claim, test, decision, same in zip(claims, tests, decided, equivalent, strict=True):
        row: dict[str, Any] = dict.fromkeys(FIELDS) | _described(claim)
        if test is None:
            row |= {"note": "no seeds" if not len(claim.differences) else "some differences are not finite"}
        elif decision is None:
            row |= test.estimates()
        else:
            row |= test.row(decision) | {"equivalence": same}
        rows.append(row)
    return rows


def _equivalences(claims: Sequence[Claim], tests: Sequence["_Test | None"], looks: int) -> list[dict[str, Any] | None]:
    """Return for each registered difference with a margin the fields of its equivalence within the margin; None for others."""
    places = [place for place, claim in enumerate(claims) if claim.goal == "difference" and claim.margin]
    twins = [None if (test := tests[place]) is None else test.of_equivalence() for place in places]
    found: list[dict[str, Any] | None] = [None] * len(claims)
    for place, twin, decision in zip(places, twins, _decide([claims[place] for place in places], twins, looks), strict=True):
        if twin and decision:
            n = len(twin.claim.differences)
            found[place] = {"p": twin.p, "p_adjusted": decision.p_adjusted, "verdict": decision.verdict, "look": n}
    return found


def verdicts(families: Sequence[Sequence[Claim]], looks: int = 1) -> list[list[str]]:
    """Return for several studies, each a sequence of claims, the verdicts of `assess`, without the cost of intervals.

    The studies are adjusted separately. It serves simulations of many studies, which it tests together.
    """
    remaining = iter(_tests([claim for family in families for claim in family]))
    found = []
    for family in families:
        decisions = _decide(family, [next(remaining) for _ in family], looks)
        found.append([_no_verdict(claim) if one is None else one.verdict for claim, one in zip(family, decisions, strict=True)])
    return found


FIELDS = (
    "id", "statement", "family", "kind", "goal", "sign", "estimand", "unit", "differences", "outcomes", "n", "estimate",
    "interval", "interval_adjusted", "adjusted_level", "p", "p_adjusted", "skewness", "margin", "equivalence",
    "smallest_detectable", "seeds_needed", "look", "last_look", "verdict", "note", "one_arm",
)  # fmt: skip


FEW_SEEDS = f"a few seeds determine the mean: skewed differences, of which fewer than {100 * MOST_SEEDS:g} % lie on its side"
WITHOUT_SIZE = "some differences are those of diverged models, which no margin bounds"
DECIDED = ("supported", "contradicted")
OF_LOOK = ("look", "verdict", "p", "p_adjusted", "note")  # kept from the look that decided a claim


def _described(claim: Claim) -> dict[str, Any]:
    names = ("id", "statement", "family", "kind", "goal", "sign", "estimand", "unit", "margin", "one_arm")
    described = {name: getattr(claim, name) for name in names}
    n = len(claim.differences)
    differences = claim.differences.tolist()
    outcomes = claim.outcomes and [np.asarray(arm, int).tolist() for arm in claim.outcomes]
    arrays = {"differences": differences, "outcomes": outcomes}
    return described | arrays | {"n": n, "look": n, "last_look": n, "verdict": _no_verdict(claim)}


def _no_verdict(claim: Claim) -> str:
    """Return what stands in place of a verdict for a claim that is not tested."""
    return "exploratory" if claim.family == "exploratory" else "undecided"


def assess_in_looks(
    claims_of: Callable[[int], Sequence[Claim]], looks: Sequence[int], planned: int | None = None
) -> list[dict[str, Any]]:
    """Test the claims at every look, with equal shares of .05; a verdict once reached stays.

    Args:
        claims_of: number of seeds -> the claims on so many first seeds.
        looks: numbers of seeds at which the claims are tested, ascending.
        planned: number of planned looks, at least `len(looks)`, if `looks` are only the first of them.

    Returns:
        Rows as returned by `assess` for the last look, `last_look`: all estimates and intervals are those of all seeds. What
        was decided at an earlier look (`verdict`, `equivalence`) is kept with its p-values and its `look`, unless the claim is
        exploratory at the last one.

    Raises:
        ValueError: if two claims have the same id, by which verdicts are kept.
    """
    decided: dict[str, dict[str, Any]] = {}
    equivalent: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for seeds in looks:
        # A claim about some seeds only, such as those that solved a task, has fewer differences than the look has seeds.
        claims = claims_of(seeds)
        if repeated := repeated_id(claims):
            raise ValueError(f"claims: two have the id {repeated}; expected a different one for each")
        rows = [row | {"look": seeds} for row in assess(claims, planned or len(looks))]
        for row in rows:
            if row["verdict"] in DECIDED:
                decided.setdefault(row["id"], {name: row[name] for name in OF_LOOK})
            if row["equivalence"]:
                row["equivalence"]["look"] = seeds
                if row["equivalence"]["verdict"] in DECIDED:
                    equivalent.setdefault(row["id"], row["equivalence"])

    def kept(row: dict[str, Any]) -> dict[str, Any]:
        if row["family"] == "exploratory":
            return row
        return row | decided.get(row["id"], {}) | {"equivalence": equivalent.get(row["id"], row["equivalence"])}

    return [kept(row) | {"last_look": looks[-1]} for row in rows]


class _Decision(NamedTuple):
    """The outcome of a test within its family.

    p_adjusted: at most 1. alpha: the level at which the claim was tested. of_interval: the level of Bonferroni's method.
    """

    p_adjusted: float
    alpha: float
    of_interval: float
    verdict: str


def _decide(claims: Sequence[Claim], tests: Sequence["_Test | None"], looks: int) -> list[_Decision | None]:
    """Return the decisions about registered claims by Holm's method at .05 / looks; None for the others.

    A registered claim that cannot be tested has p 1: the data do not decide how many claims the others are adjusted for.
    """
    family = {place: test for place, test in enumerate(tests) if claims[place].family == "registered"}
    p_values = [1.0 if test is None else test.p for test in family.values()]
    adjusted = [min(1.0, looks * p) for p in holm(p_values)]
    factors = holm_factors(p_values)
    # Holm's steps end at the first test that fails: the tests that fail share its level.
    failing = max((factor for factor, p in zip(factors, adjusted, strict=True) if not _passes(p)), default=1)
    level = SIGNIFICANCE / looks
    decisions = {
        place: _Decision(p, level / (factor if _passes(p) else failing), level / len(family), test.verdict(p))
        for (place, test), p, factor in zip(family.items(), adjusted, factors, strict=True)
        if test is not None
    }
    return [decisions.get(place) for place in range(len(tests))]


def _passes(p: float, alpha: float = SIGNIFICANCE) -> bool:
    """Whether p is at most alpha, up to rounding."""
    return p <= alpha * (1 + 1e-9)


def _tests(claims: Sequence[Claim]) -> list["_Test | None"]:
    """Return the test of every claim, None without seeds or with differences that are not finite."""
    testable = [claim for claim in claims if len(claim.differences) and np.isfinite(claim.differences).all()]
    # Differences of proportions have McNemar's test; their margins are tested as those of means are.
    of_means = [claim for claim in testable if claim.kind != "proportion" or claim.margin]
    differences = [claim.differences for claim in of_means]
    found = mean_tests(differences, [claim.one_arm for claim in of_means])
    means = dict(zip(map(id, of_means), found, strict=True))
    tests = {id(claim): _Test(claim, means.get(id(claim))) for claim in testable}
    return [tests.get(id(claim)) for claim in claims]


class _Test:
    """The test of one claim with finite differences.

    means: the tests of the mean; None for the difference of two proportions without a margin, which does not need them.
    """

    def __init__(self, claim: Claim, means: MeanTest | None) -> None:
        self.claim, self.means = claim, means
        self.p_for, self.p_against = self._p_values()
        self.p = min(self.p_for, self.p_against)

    @property
    def is_difference_of_proportions(self) -> bool:
        """Whether the test is McNemar's."""
        return self.claim.kind == "proportion" and self.claim.goal == "difference"

    def of_equivalence(self) -> "_Test":
        """Return the test of the claim that the mean of these differences lies within the margin."""
        return _Test(dataclasses.replace(self.claim, goal="equivalence", sign=0), self.means)

    def _p_values(self) -> tuple[float, float]:
        """Return the p-values with which the claim would be supported and contradicted."""
        claim, margin = self.claim, self.claim.margin or 0.0
        if claim.goal == "difference":
            p = mcnemar(*claim.outcomes_of_arms) if self.is_difference_of_proportions else self._of_mean.two_sided()
            mean = float(claim.differences.mean())
            return (p, 1.0) if mean * claim.sign > 0 else (1.0, p) if mean else (1.0, 1.0)
        means = self._of_mean
        least = self._least
        if claim.goal == "non-inferiority":
            above, below = means.above(-claim.sign * margin), means.below(-claim.sign * margin)
            favoured, other = (above, below) if claim.sign > 0 else (below, above)
            return max(favoured, least), other
        inside = max(means.above(-margin), means.below(margin), least)
        return inside, min(1.0, 2 * min(means.below(-margin), means.above(margin)))

    @property
    def _least(self) -> float:
        """The smallest p with which the differences can show that their mean lies within the margin.

        1 if some of them have no size. If a proportion differs by the margin, no difference shows in n seeds with a probability
        of at most (1 - margin)^n.
        """
        margin, n = self.claim.margin or 0.0, len(self.claim.differences)
        if self.claim.some_replaced or self.claim.kind != "proportion":
            return float(self.claim.some_replaced)
        return (1 - min(margin, 1.0)) ** n

    @property
    def _of_mean(self) -> MeanTest:
        assert self.means is not None
        return self.means

    def verdict(self, p_adjusted: float) -> str:
        """Return the verdict that follows from the adjusted p."""
        if not _passes(p_adjusted):
            return "undecided"
        return "supported" if self.p_for <= self.p_against else "contradicted"

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided interval at level 1 - alpha."""
        if self.claim.kind != "proportion":
            return self._of_mean.interval(alpha)
        outcomes = self.claim.outcomes_of_arms
        low, high = newcombe(*outcomes, alpha)
        # Newcombe's interval does not invert McNemar's test: where they disagree about 0, the end next to 0 is moved.
        if not _passes(mcnemar(*outcomes), alpha):
            return min(low, 0.0), max(high, 0.0)
        if self.claim.differences.mean() > 0:
            return max(low, NEXT_TO_0), high
        return low, min(high, -NEXT_TO_0)

    def adjusted_interval(self, alpha: float) -> tuple[float, float]:
        """Return the interval at level 1 - alpha that excludes 0, or lies inside or outside the margin, only if the test does.

        That is, only if the test at level `alpha` says so.
        """
        if self.claim.goal == "difference":
            return self.interval(alpha)
        low, high = self._of_mean.one_sided_limits(alpha / 2)
        if self.claim.kind == "proportion":  # the margins within which no difference in n seeds would not show it
            widest = 1 - (alpha / 2) ** (1 / len(self.claim.differences))
            low, high = min(low, -widest), max(high, widest)
        return low, high

    @property
    def held_back(self) -> bool:
        """Whether the claim is undecided, or less decided, because a few seeds determine the mean (see `mean_tests`)."""
        if self.means is None or self.is_difference_of_proportions or abs(self.means.skewness) <= VERY_SKEWED:
            return False
        return _Test(self.claim, self.means._replace(by_most=False)).p < self.p

    @property
    def without_size(self) -> bool:
        """Whether the claim is about a margin, and some differences have no size."""
        return self.claim.some_replaced and self.claim.goal != "difference"

    def estimates(self) -> dict[str, Any]:
        """Return the fields of the row that need no family."""
        skewness = 0.0 if self.means is None or self.is_difference_of_proportions else self.means.skewness
        return {
            "estimate": float(self.claim.differences.mean()),
            "interval": _finite(self.interval(SIGNIFICANCE)),
            "skewness": skewness if abs(skewness) > SKEWED else None,
        }

    def row(self, decision: _Decision) -> dict[str, Any]:
        """Return the fields of a registered claim."""
        few = self.held_back
        return {
            **self.estimates(),
            "interval_adjusted": None if few or self.without_size else _finite(self.adjusted_interval(decision.of_interval)),
            "adjusted_level": 1 - decision.of_interval,
            "p": self.p,
            "p_adjusted": decision.p_adjusted,
            "verdict": decision.verdict,
            **({} if few or self.without_size else self._power(decision.alpha)),
            "note": WITHOUT_SIZE if self.without_size else FEW_SEEDS if few else self._floor(decision.alpha),
        }

    def _power(self, alpha: float) -> dict[str, Any]:
        claim, n = self.claim, len(self.claim.differences)
        if n < 2 or is_constant(claim.differences):
            return {}
        deviation = float(np.std(claim.differences, ddof=1))
        # Equivalence is two tests: both reject in four of five studies if each does in nine of ten.
        about: Any = (alpha, claim.sides, (1 + POWER) / 2 if claim.goal == "equivalence" else POWER)
        needed = seeds_needed(deviation, claim.margin, *about) if claim.margin else None
        return {"smallest_detectable": smallest_detectable(deviation, n, *about), "seeds_needed": needed}

    def _floor(self, alpha: float) -> str | None:
        n = len(self.claim.differences)
        floor = max(self.claim.sides * 2.0**-n, self._least if self.claim.goal != "difference" else 0.0)
        if _passes(floor, alpha):
            return None
        seeds = "1 seed" if n == 1 else f"{n} seeds"
        return f"{seeds} cannot decide this claim: the smallest possible p is {floor:.3g}, and it is tested at {alpha:.3g}"


def _finite(interval: tuple[float, float]) -> list[float | None] | None:
    low, high = (end if math.isfinite(end) else None for end in interval)
    return None if low is None and high is None else [low, high]
