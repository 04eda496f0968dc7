"""Bars, and how a figure stands to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A bar: the least that is asked, what is aimed at, and what was found; more: whether more is better."""

    says: str
    least: float
    aim: float
    found: float | None
    unit: str
    more: bool

    @property
    def verdict(self) -> str:
        """How the figure stands to the bars."""
        if self.found is None:
            return "not measured"
        for name, bar in (("aim", self.aim), ("at least", self.least)):
            if self.found >= bar if self.more else self.found <= bar:
                return name
        return "**missed**"

    def shown(self, figure: float | None) -> str:
        """One of its figures, or one beside them, as a table has it."""
        if figure is None:
            return "-"
        text = f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"
        return f"{text} {self.unit}".rstrip()
