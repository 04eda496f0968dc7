"""The gateway against its peers: requests, chunks, CPU time, first words and memory, each on a core of its own."""
