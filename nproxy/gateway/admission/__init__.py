"""Who is let in, and when.

ledger: counts and decides; pure, with time as an argument. One for all workers, so that limits are exact over them.
It looks who is next in its queue, keeps an account of each key, with meters of its rates, and a claim of each request.
clerk: runs a ledger by the event loop's clock. desk: where a request asks, waits and leaves; one in each worker.
grant: the permits that a request was given. memory: what the desk looks at before it lets anybody come in.
choices: what permits are counted in. key: under what the limits of one caller are counted, the caller's bucket.
ticket: names one request's permits; what stands before its hyphen names the worker.
"""
