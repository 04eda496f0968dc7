"""`nproxy probe`: finds out with about 65 small requests what an OpenAI-compatible server can do.

The interview is pure: a generator that yields questions and receives replies, so that recorded answers of real servers
can be fed to it. Only `client` uses HTTP.

questions   what is asked, and what came back
reading     a reply as choices, usage and what a stream looked like
findings    the facts, each with a verdict and its evidence; the report
sampling    whether the server samples, and what seeds do
width       native n and its width
streams     what a stream looks like, and what usage counts
legacy      prompt lists, token ids, echo
activity    slots, prefix caching, cancellation
interview   the order of the questions
client      httpx: sends a question, reads a reply
table, entry, report_json   the report as a table, as an `upstreams:` entry, as JSON
command     all of it put together
"""
