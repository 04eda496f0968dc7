"""Makes the OpenAPI document of the admin port from a configuration."""

from __future__ import annotations

from nproxy.config import Config
from nproxy.gateway.admin.announcing import Announcement
from nproxy.gateway.openapi.document import finished
from nproxy.gateway.openapi.fragments import Fragment, fragment
from nproxy.gateway.openapi.shapes import completed


def admin_document(config: Config) -> Fragment:
    """Return the OpenAPI document of the admin port. Pure."""
    head, own, answers = fragment("head"), fragment("admin"), fragment("responses")
    token = config.admin is not None and config.admin.token is not None
    document = {
        "openapi": head["openapi"],
        "info": {**own["info"], "license": head["info"]["license"]},
        "tags": own["tags"],
        "servers": own["servers"],
        "security": [{"bearer": []}] if token else [],
        "paths": {**own["paths"], **fragment("paths")["x-on-both-ports"]},
        "components": {
            "securitySchemes": own["components"]["securitySchemes"],
            "headers": answers["headers"],
            "responses": {**answers["responses"], **own["components"]["responses"]},
            "schemas": {
                **fragment("answers")["schemas"],
                **completed(own["components"]["schemas"], {"announcement": Announcement}),
            },
        },
    }
    facts = {"token": token, "metrics": config.telemetry.metrics}
    return finished(document, [name for name, so in facts.items() if so], {})
