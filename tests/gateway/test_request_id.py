"""Ids that are made for requests which bring none, or none that can be shown."""

from __future__ import annotations

from uuid import UUID

from nproxy.gateway.request_id import request_id


def test_one_that_is_made_is_a_random_uuid_of_version_4() -> None:
    made = {request_id(None) for _ in range(64)}
    assert len(made) == 64
    assert all(str(UUID(id)) == id and UUID(id).version == 4 for id in made)


def test_the_clients_own_is_kept_and_another_made_for_one_that_cannot_be_shown() -> None:
    assert request_id("mine") == "mine"
    assert UUID(request_id("two\nlines")).version == 4
