"""`nproxy bench`: loads an OpenAI-compatible server and says how many choices and tokens it gives, and how soon.

Everything down to `compare` is pure: times are arguments.

schedule    when requests are sent: closed loop, open loop
prompts, words, asking   what a request says, and its body
answer      an answer as it comes: a Record of when each choice spoke and ended, or a Failure
samples     times and their percentiles
measures    what is measured of a Record, as a table of measures
tally       Records added up
doubts      when the figures are not what they seem
report      the outcome: printed, saved, compared
table, compare   a report, or two of them, as lines
client      aiohttp: a request out, a Record back
running     the two loops
measuring   warm-up, the loop, the end, Ctrl-C
progress    how far it is, on a terminal
early_end   Ctrl-C
options, given, planning   what is typed: for click, as a value, as a plan
command     all of it put together
failed      why there is no report
"""
