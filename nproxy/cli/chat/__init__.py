"""`nproxy chat`: n answers side by side in the terminal, as they arrive.

options       the options as click defines them; imports nothing slow
settings      the fields of requests
client        httpx: the list of models, and a request's answer as chunks
answers       the growing choices of one request, their token counts and times, how each ended
columns       the answers on a terminal, redrawn while they grow
plain         the answers in a pipe, as text or as JSON
conversation  turns, with one answer of each picked for the next
slash         the commands that begin with a slash
talk          the prompt: reads lines, asks and answers until the input ends
command       all of it put together
"""
