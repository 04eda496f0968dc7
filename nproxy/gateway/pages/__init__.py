"""The pages that the gateway serves itself. Each is a folder of static files, as browsers take them: nothing is built.

They hold no data, so that they are shown without a key; what their scripts ask is asked with one. `site` finds a page's
file by its path, `policy` says what a browser may do with it.
"""
