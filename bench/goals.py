"""Goals, and how a measured figure compares with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for one figure."""

    says: str
    """What is measured."""
    least: float
    """The bar that must be reached."""
    aim: float
    """The bar that is aimed at."""
    found: float | None
    """The measured figure; None if it was not measured."""
    unit: str
    more: bool
    """Whether more is better."""

    @property
    def verdict(self) -> str:
        """Which bar the figure reaches: "aim", "at least", or "**missed**"; "not measured" if there is none."""
        if self.found is None:
            return "not measured"
        for name, bar in (("aim", self.aim), ("at least", self.least)):
            if self.found >= bar if self.more else self.found <= bar:
                return name
        return "**missed**"

    def shown(self, figure: float | None) -> str:
        """Format a figure of this goal, or one to compare with it, for a table."""
        if figure is None:
            return "-"
        text = f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
        return f"{text} {self.unit}".rstrip()
