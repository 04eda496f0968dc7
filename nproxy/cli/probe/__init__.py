"""`nproxy probe`: finds out by some 65 small requests what an OpenAI-compatible server can do.

The interview is pure: a generator that gives questions and takes replies, so that recorded answers of
real servers can be fed to it. `client` alone speaks HTTP.

questions   what is asked, and what came back
reading     a reply as choices, usage and what a stream looked like
findings    the facts, each with a verdict and how it is known; the report
sampling    whether it draws, and what seeds do
width       native n and its width
streams     what a stream looks like, and what usage counts
legacy      prompt lists, token ids, echo
activity    slots, prefix caching, leaving
interview   the order of the questions
client      httpx: a question out, a reply in
table, entry, report_json   the report as a table, as an `upstreams:` entry, as JSON
command     all of it put together
"""
