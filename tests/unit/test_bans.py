"""Who is left alone, for how long, and who has come back."""

from __future__ import annotations

import pytest

from swarmctl.blocks import PeerId
from swarmctl.routing import BanList, Returns

P, Q = PeerId("p"), PeerId("q")


def test_bans_double_with_each_failure_up_to_a_minute() -> None:
    bans, now, lasted = BanList(), 100.0, []
    for _ in range(7):
        bans.record_failure(P, now, "lost")
        end = next(after for after in range(1, 200) if P not in bans.banned(now + after))
        lasted.append(end)
        now += end
    assert lasted == [5, 10, 20, 40, 60, 60, 60]


def test_a_peer_that_always_failed_is_still_banned_for_a_minute() -> None:
    bans = BanList()
    for strike in range(2000):
        bans.record_failure(P, 60.0 * strike, "silent")
    assert P in bans.banned(60.0 * 1999 + 59.9)
    assert P not in bans.banned(60.0 * 1999 + 60.0)


def test_sessions_that_lose_a_server_together_ban_it_as_one_would() -> None:
    bans = BanList()
    for moment in (0.0, 0.1, 0.2, 3.0):
        bans.record_failure(P, moment, "lost")
    assert P in bans.banned(7.9)
    assert P not in bans.banned(8.0)
    bans.record_failure(P, 8.0, "lost")
    assert P in bans.banned(17.9)
    assert P not in bans.banned(18.0)


def test_a_success_ends_the_ban_and_forgets_the_failures() -> None:
    bans = BanList()
    bans.record_failure(P, 0.0, "lost")
    bans.record_failure(P, 5.0, "lost")
    bans.record_failure(Q, 5.0, "lost")
    bans.record_success(P)
    assert bans.banned(5.0) == {Q}
    bans.record_failure(P, 5.0, "lost")
    assert P not in bans.banned(10.0)


@pytest.mark.parametrize("kind", ["busy", "undialled"])
def test_a_busy_or_undialled_server_is_left_alone_for_two_seconds_and_earns_no_strike(kind: str) -> None:
    bans = BanList()
    for moment in (0.0, 2.0, 4.0):
        bans.record_failure(P, moment, kind)
    assert P in bans.banned(5.9)
    assert P not in bans.banned(6.0)
    bans.record_failure(P, 10.0, "broken")
    assert P not in bans.banned(15.0)


@pytest.mark.parametrize("kind", ["busy", "slow", "undialled"])
def test_being_busy_or_slow_or_undialled_does_not_shorten_a_ban(kind: str) -> None:
    bans = BanList()
    bans.record_failure(P, -1.0, "slow")
    bans.record_failure(P, 0.0, "lost")
    bans.record_failure(P, 0.1, kind)
    assert P in bans.banned(4.9)
    assert P in bans.banned(4.9, slow=False)


def test_a_slow_server_is_left_alone_for_five_seconds_or_until_it_answers_and_earns_no_strike() -> None:
    bans = BanList()
    for moment in (0.0, 1.0):
        bans.record_failure(P, moment, "slow")
    assert P in bans.banned(5.9)
    assert P not in bans.banned(6.0)
    bans.record_failure(P, 10.0, "broken")
    assert P not in bans.banned(15.0)
    bans.record_failure(P, 20.0, "slow")
    bans.record_success(P)
    assert bans.banned(20.0) == frozenset()


def test_who_is_merely_slow_can_be_told_from_who_failed_or_is_full() -> None:
    bans = BanList()
    bans.record_failure(P, 0.0, "slow")
    bans.record_failure(Q, 0.0, "busy")
    assert bans.banned(1.0) == {P, Q}
    assert bans.banned(1.0, slow=False) == {Q}


def test_an_expired_stream_bans_nobody() -> None:
    bans = BanList()
    bans.record_failure(P, 0.0, "expired")
    assert bans.banned(0.0) == frozenset()


def test_a_success_of_a_peer_that_never_failed_changes_nothing() -> None:
    bans = BanList()
    bans.record_success(P)
    assert bans.banned(0.0) == frozenset()


# --- who is back ------------------------------------------------------------------------------------------------


def watching(kind: str, *, readings: int = 3) -> Returns:
    returns = Returns()
    returns.record_failure(P, kind, readings=readings)
    return returns


def test_a_lost_server_is_back_when_it_announces_itself_after_a_reading_that_began_after_the_failure() -> None:
    returns = watching("lost")
    assert returns.back(4, {P: 100.0, Q: 100.0}) == ()
    assert returns.back(5, {P: 100.0, Q: 110.0}) == ()
    assert returns.back(6, {P: 110.0, Q: 110.0}) == (P,)


def test_what_a_dead_server_wrote_a_moment_before_its_death_is_no_return() -> None:
    returns = watching("lost")
    assert returns.back(3, {P: 100.0}) == (), "this reading had begun before the failure"
    assert returns.back(4, {P: 110.0}) == (), "and this is the newest that it had written"
    assert returns.back(5, {P: 110.0}) == ()


@pytest.mark.parametrize("kind", ["silent", "broken"])
def test_a_server_that_announces_itself_and_does_not_compute_is_not_back_until_it_was_away(kind: str) -> None:
    returns = watching(kind)
    for reading, ends in enumerate((100.0, 110.0, 120.0), start=4):
        assert returns.back(reading, {P: ends}) == ()
    assert returns.back(7, {}) == ()
    assert returns.back(8, {P: 130.0}) == (P,)


@pytest.mark.parametrize("kind", ["lost", "silent"])
def test_a_server_without_a_record_is_back_with_its_first_one(kind: str) -> None:
    returns = watching(kind)
    assert returns.back(4, {}) == ()
    assert returns.back(5, {P: 1.0}) == (P,)


def test_a_return_is_told_once_and_a_new_failure_is_watched_anew() -> None:
    returns = watching("refused")
    returns.back(4, {P: 100.0})
    assert returns.back(5, {P: 101.0}) == (P,)
    assert returns.back(6, {P: 102.0}) == ()
    returns.record_failure(P, "lost", readings=6)
    assert returns.back(7, {P: 102.0}) == ()
    assert returns.back(8, {P: 103.0}) == (P,)


@pytest.mark.parametrize("kind", ["busy", "slow", "expired", "undialled"])
def test_a_server_that_is_well_is_not_watched(kind: str) -> None:
    returns = watching(kind)
    assert returns.back(4, {P: 100.0}) == ()
    assert returns.back(5, {P: 110.0}) == ()
