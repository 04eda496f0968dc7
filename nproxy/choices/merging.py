"""Chooses the merge of a request."""

from __future__ import annotations

from nproxy.choices.best_of import BestOf
from nproxy.choices.capability import Capability
from nproxy.choices.copies import Copies
from nproxy.choices.merge import Merge
from nproxy.choices.plan import Plan
from nproxy.choices.relay import Relay
from nproxy.choices.resume import recorder
from nproxy.choices.settings import ConductSettings, Names
from nproxy.openai.requests import Request


def merge_for(request: Request, plan: Plan, capability: Capability, settings: ConductSettings, names: Names) -> Merge:
    """Return the merge for what the plan brings: more choices than the client asked for, fewer, or as many."""
    if plan.n > request.n:
        return BestOf(request, names)
    record = recorder(request, settings.resume)
    if plan.n < request.drawn:
        return Copies(request, names, record, counts_all=capability.exact)
    if plan.way.mode != "relay":
        return Merge(request, names, record, counts_all=capability.exact)
    aliased = capability.model is not None and capability.model != names.model
    return Relay(request, names, names.model if aliased else None, capability.exact, record)
