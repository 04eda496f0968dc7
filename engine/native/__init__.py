"""What lies between a model's products on a CPU, in C: one call for each thing, compiled for the machine at hand."""
