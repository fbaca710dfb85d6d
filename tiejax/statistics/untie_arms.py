"""The arms of an untie curve: when and by which policy each of them unties, and which arms form a curve."""

import dataclasses
from collections.abc import Sequence

import numpy as np

# The baselines and their names in reports; the first two are the ends of every curve.
BASELINES = {
    "tied": "always tied",
    "equal": "never tied, from equal tables",
    "independent": "never tied, from independent tables",
}


@dataclasses.dataclass(frozen=True)
class Arms:
    """The arms of a run: for each, the step at which it unties, the policy, and which table becomes new.

    step: 0 for never tied from equal tables, the last step for always tied, -1 for never tied from independent tables.
    policy, new: `""` for the baselines.
    """

    step: np.ndarray
    policy: np.ndarray
    new: np.ndarray

    @classmethod
    def of(
        cls, untie_at: Sequence[int | float], steps: int, policies: Sequence[str], new: Sequence[str] = ("output",)
    ) -> "Arms":
        """Return the three baselines, then an arm for each policy and step in between (and each new table if `zero`).

        untie_at: integer steps, or fractions of all steps as floats. The new table matters only for the `zero` policies, so
        other policies have one arm per step.
        """
        asked = {round(at * steps) if isinstance(at, float) else at for at in untie_at}
        between = sorted(step for step in asked if 0 < step < steps)
        rows = [(-1, "", ""), (0, "", ""), (steps, "", "")]
        for policy in policies:
            tables = new if policy.startswith("zero") else new[:1]
            rows += [(step, policy, table) for table in tables for step in between]
        step, policy_of_arm, new_of_arm = (np.array(column) for column in zip(*rows, strict=True))
        return cls(step, policy_of_arm, new_of_arm)

    @property
    def names(self) -> list[str]:
        """The name of every arm, usable as a file name."""
        names = [f"{policy}-{table}-{step}" for step, policy, table in zip(self.step, self.policy, self.new, strict=True)]
        for baseline in BASELINES:
            names[self.baseline(baseline)] = "tied" if baseline == "tied" else f"never-tied-{baseline}"
        return names

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of metrics.npz that describe the arms."""
        return {"arms": np.array(self.names), "untie_step": self.step, "policy": self.policy, "new": self.new}

    def baseline(self, name: str) -> int:
        """Return the index of a baseline's arm."""
        step = {"tied": self.step.max(), "equal": 0, "independent": -1}[name]
        return int(np.flatnonzero(self.step == step)[0])

    def curves(self) -> dict[str, np.ndarray]:
        """Return the arm indices of each curve, in the order of their steps, including both ends.

        There is a curve for each policy, or, for `zero` policies, each policy and new table: `copy`, `zero, new output`, ...
        """
        between: dict[str, list[int]] = {}
        for number in np.argsort(self.step, kind="stable"):
            policy, table = self.policy[number], self.new[number]
            if policy:
                curve = f"{policy}, new {table}" if policy.startswith("zero") else str(policy)
                between.setdefault(curve, []).append(int(number))
        first, last = self.baseline("equal"), self.baseline("tied")
        return {curve: np.array([first, *numbers, last]) for curve, numbers in between.items()}
