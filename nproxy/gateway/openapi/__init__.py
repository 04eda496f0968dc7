"""`/openapi.json`: the endpoints of the gateway and of its admin port under the current configuration, as OpenAPI 3.1.

The texts are in YAML files in this folder. The types of request fields come from the models that parse them.

fragments   reads the YAML, and selects the parts that apply to a configuration
shapes      merges the types of pydantic's models into the hand-written schemas
passed      the paths that are passed through
document    makes the document from a configuration; pure
serving     serves the document as bytes, made once for each configuration
"""
