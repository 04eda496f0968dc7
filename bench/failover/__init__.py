"""A replica is killed in mid-stream: what the client of each router sees."""
