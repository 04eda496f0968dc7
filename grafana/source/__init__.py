"""The dashboards as code: `make dashboards` writes grafana/dashboards/*.json from it.

promql   expressions, with functions that say how they are aggregated
queries  an expression with the names of its series
kit      a panel, a row, a dashboard: the look that all of them share
Besides these there is a module per dashboard, which is a table of panels; processes is a row of the overview.
"""
