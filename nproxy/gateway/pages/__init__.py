"""The pages that the gateway serves itself. Each is a folder of static files, without a build step.

They contain no data, so they need no key; the requests of their scripts do. `site` finds a page's file by its path,
`policy` has the headers that limit what a browser may do with it.
"""
