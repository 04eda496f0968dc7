"""`nproxy dashboards`: what Grafana and Prometheus are to be given, out of the package.

options   the command, as click knows it; imports nothing that takes time
export    where the files lie, and how they are written
"""
