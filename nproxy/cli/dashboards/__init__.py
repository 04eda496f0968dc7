"""`nproxy dashboards`: writes files for Grafana and Prometheus that come with the package.

options   the command as click defines it; imports nothing slow
export    where the files are, and how they are written
"""
