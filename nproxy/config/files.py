"""Checks whether the files that the settings name can be used, before anything starts or is replaced."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path as FilePath

from nproxy.config.contents import contents
from nproxy.config.keys import Key, read_keys
from nproxy.config.sections import NotRead
from nproxy.config.settings import Config, Tls
from nproxy.config.tree import ConfigError, Origin, Path, Problem, Tree


def check_files(config: Config, tree: Tree) -> tuple[Key, ...]:
    """Read the keys file and check the certificate; returns the keys, none if there is no keys file.

    config: may be read partly. Raises ConfigError if the keys file or the certificate cannot be used. Problems within
    the keys file have its own lines.
    """
    problems: list[Problem] = []
    keys: tuple[Key, ...] = ()
    with suppress(NotRead):
        if config.auth is not None and config.auth.api_keys_file is not None:
            try:
                keys = _read_keys(config.auth.api_keys_file, tree)
            except ConfigError as error:
                problems += error.problems
    with suppress(NotRead):
        if config.listen.tls is not None and (unusable := why_unusable(config.listen.tls)) is not None:
            path: Path = ("listen", "tls", unusable[0])
            problems.append(Problem(tree.origin(path), path, unusable[1]))
    if problems:
        raise ConfigError(problems)
    return keys


def pair_of(config: Config) -> tuple[bytes, bytes] | None:
    """Return what the files of the certificate and its key hold, as checked before; None if there are none.

    Raises ConfigError if one of them has gone since then.
    """
    if (tls := config.listen.tls) is None:
        return None
    try:
        return contents(tls.certificate), contents(tls.key)
    except OSError as error:
        raise ConfigError(
            [Problem(Origin(str(tls.certificate)), (), (error.strerror or str(error)).lower())]
        ) from error


def _read_keys(file: FilePath, tree: Tree) -> tuple[Key, ...]:
    path = ("auth", "api_keys_file")
    if (unreadable := _why_unreadable(file)) is not None:
        raise ConfigError([Problem(tree.origin(path), path, unreadable)])
    return read_keys(file)


def _why_unreadable(file: FilePath) -> str | None:
    try:
        contents(file)
    except OSError as error:
        return f"cannot read {file}: {(error.strerror or str(error)).lower()}"
    return f"cannot read {file} twice: it is a pipe" if file.is_fifo() else None


def why_unusable(tls: Tls) -> tuple[str, str] | None:
    """Return what is wrong with a certificate and its key: which of the two, and why; None if they can be used."""
    for name in ("certificate", "key"):
        if (unreadable := _why_unreadable(getattr(tls, name))) is not None:
            return name, unreadable
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "key", "belongs to another certificate"
        return "certificate", "cannot be used with its key: one of the two is not a PEM file, or the key is encrypted"
    return None


def load_pair(context: ssl.SSLContext, tls: Tls) -> None:
    """Load the certificate and its key into a context.

    Raises OSError (ssl.SSLError is a subclass); never asks for a password.
    """
    context.load_cert_chain(tls.certificate, tls.key, password="")
