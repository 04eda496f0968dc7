"""`/openapi.json`: what the gateway and its admin port take and say, as OpenAPI 3.1, under the configuration of now.

What is said stands in YAML beside this file; types of request fields come from the models that read them.

fragments   the YAML, and what of it holds for a configuration
shapes      pydantic's models as schemas, laid under what is said of their fields
passed      the paths that go to a server unread
document    a configuration to its document; pure
serving     the document as bytes, written once under each configuration
"""
