"""What runs between a model's matrix products on a CPU, and many of the products, in C: one call for each operation,
compiled for this machine.
"""
