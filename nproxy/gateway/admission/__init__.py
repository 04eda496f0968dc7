"""Who is let in, and when.

ledger: counts and decides; pure, with time as an argument. One for all workers, so that limits are exact over them.
clerk: runs a ledger by the event loop's clock. desk: where a request asks, waits and leaves; one in each worker.
choices: what permits are counted in. key: under what the limits of one caller are counted, the caller's bucket.
ticket: names one request's permits; what stands before its hyphen names the worker.
"""
