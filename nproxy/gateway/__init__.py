"""The HTTP side that clients see: requests in, the driver that carries out the conduct's commands, answers out."""
