"""The arms of an untie curve: when each unties, by which policy, and which of them are compared."""

import dataclasses
from collections.abc import Sequence

import numpy as np

# The ends and the third baseline, by name: the words of the reports.
BASELINES = {
    "tied": "always tied",
    "equal": "never tied, from equal tables",
    "independent": "never tied, from independent tables",
}


@dataclasses.dataclass(frozen=True)
class Arms:
    """The arms of a run: the step at which each unties, by which policy, and which table is then new (`""` for the baselines).

    step: 0 for never tied from equal tables, the last step for always tied, -1 for never tied from independent tables.
    """

    step: np.ndarray
    policy: np.ndarray
    new: np.ndarray

    @classmethod
    def of(
        cls, untie_at: Sequence[int | float], steps: int, policies: Sequence[str], new: Sequence[str] = ("output",)
    ) -> "Arms":
        """Return the three baselines, then every policy at every step in between, `zero` ones for every new table.

        untie_at: whole steps, or fractions of all steps (written with a point). Which table is new makes a difference to the
        `zero` policies alone, so that the others have one arm a step.
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
        """Name every arm, as folders and files can be called."""
        names = [f"{policy}-{table}-{step}" for step, policy, table in zip(self.step, self.policy, self.new, strict=True)]
        for baseline in BASELINES:
            names[self.baseline(baseline)] = "tied" if baseline == "tied" else f"never-tied-{baseline}"
        return names

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return what metrics.npz says of the arms."""
        return {"arms": np.array(self.names), "untie_step": self.step, "policy": self.policy, "new": self.new}

    def baseline(self, name: str) -> int:
        """Return the number of the arm that is a baseline."""
        step = {"tied": self.step.max(), "equal": 0, "independent": -1}[name]
        return int(np.flatnonzero(self.step == step)[0])

    def curves(self) -> dict[str, np.ndarray]:
        """Return by curve the numbers of its arms, in the order of their steps, both ends among them.

        There is a curve for each policy, and of the `zero` ones for each new table: `copy`, `zero, new output`, ...
        """
        between: dict[str, list[int]] = {}
        for number in np.argsort(self.step, kind="stable"):
            policy, table = self.policy[number], self.new[number]
            if policy:
                curve = f"{policy}, new {table}" if policy.startswith("zero") else str(policy)
                between.setdefault(curve, []).append(int(number))
        first, last = self.baseline("equal"), self.baseline("tied")
        return {curve: np.array([first, *numbers, last]) for curve, numbers in between.items()}
