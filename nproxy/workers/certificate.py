"""The TLS certificate of a worker: as the parent has checked it, whatever its files hold when the worker starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nproxy.config import Config


@contextmanager
def certificate_in_memory(config: Config, settings: Mapping[str, Any]) -> Iterator[Config]:
    """Give the settings with files in memory in place of those of the certificate and its key, while the block runs.

    settings: `Reading.message()`. Only Linux has such files; elsewhere, the settings stay as they are.
    """
    tls, pair = config.listen.tls, settings.get("pair")
    if tls is None or pair is None or not hasattr(os, "memfd_create"):
        yield config
        return
    with ExitStack() as stack:
        certificate, key = (_in_memory(stack, text.encode("latin-1")) for text in pair)
        tls = tls.model_copy(update={"certificate": certificate, "key": key})
        yield config.model_copy(update={"listen": config.listen.model_copy(update={"tls": tls})})


def _in_memory(stack: ExitStack, content: bytes) -> Path:
    file = stack.enter_context(os.fdopen(os.memfd_create("nproxy-tls"), "wb"))
    file.write(content)
    file.flush()
    return Path(f"/proc/self/fd/{file.fileno()}")
