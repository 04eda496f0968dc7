"""Calls that a server refuses for lack of capacity: which legs wait, and when they call again (ADR 0049).

`queues.py` has a queue for each account; `queue.py` takes what happens to the account's calls, and has its parts act:
`waiting_legs.py` who waits, `leg_admission.py` who goes next, `freed_slots.py`, `probes.py` and `patience.py` when,
`prospects.py` whether a refused leg waits again, `announcements.py` what other accounts and workers are told.
"""
