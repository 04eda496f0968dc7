"""Admission control: which requests are admitted, and when.

ledger: counts and decides; pure, with time as an argument. There is one for all workers, so that limits are exact. It
has a fair queue, an account of each key with the meters of its rates, and a claim of each request.
server: runs a ledger by the event loop's clock. client: where a request asks for permits, waits, and gives them back;
one in each worker.
grant: the permits of an admitted request. memory: limits on memory, which the client checks before anything is read.
choices: the unit of permits. key: the bucket in which the limits of one caller are counted.
ticket: identifies the permits of one request; the part before its hyphen identifies the worker.
"""
