"""`nproxy chat`: n answers side by side in the terminal, as they come.

options       what the command takes, as click knows it; imports nothing that takes time
settings      what requests ask for
client        httpx: the list of models, and a request's answer as chunks
answers       the choices of one request as they grow, what each one took, how it ended
columns       them on a terminal, drawn anew as long as they grow
plain         them in a pipe, as text or as JSON
conversation  turns, of whose answers one goes on
slash         what is typed behind a slash
talk          the prompt: lines read, asked and answered until the input ends
command       all of it put together
"""
