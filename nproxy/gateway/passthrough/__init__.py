"""Pass-through: requests to endpoints that nproxy does not know go to an upstream as they came, streamed both ways.

handler: asks the upstream, and others if it fails, and sends the answer. upload: the body, read as far as is needed to
find its model. forms: the models that a form names. retries: when the same upstream is asked again.
"""
