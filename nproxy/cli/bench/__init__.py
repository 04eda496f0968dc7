"""`nproxy bench`: loads an OpenAI-compatible server; measures its choices and tokens per second, and its latencies.

Everything down to `compare` is pure: times are arguments.

schedule    when requests are sent: closed loop, open loop
prompts, words, asking   the prompts of requests, and their bodies
answer      parses an answer as it arrives: a Record of when each choice spoke and ended, or a Failure
samples     times and their percentiles
measures    what is measured of a Record, as a table of measures
tally       Records added up
doubts      warnings when the figures may mislead
report      the outcome: printed, saved, compared
table, compare   a report, or two of them, as lines
client      aiohttp: sends a request, returns a Record
running     the two loops
measuring   warm-up, the loop, the end, Ctrl-C
progress    a progress bar, on a terminal
early_end   Ctrl-C
options, given, planning   the options: for click, as a value, as a plan
command     all of it put together
failed      errors for which there is no report
"""
