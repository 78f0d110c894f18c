"""Which connection makes room for a new one, once as many are open as may be."""

from dataclasses import dataclass, field

from addnorm.service.errors import ServiceError
from addnorm.service.server.http.room import SILENT_S, Room

LATER = 10 * SILENT_S


@dataclass(eq=False)
class Fake:
    key: str = ""
    made_at: float = 0.0
    waiting_s: float = 0.0
    ended: list[str] = field(default_factory=list)

    def waits_for_caller(self, now: float) -> float:
        return self.waiting_s

    def abort(self) -> None:
        self.ended.append("aborted")

    def end(self, error: ServiceError) -> None:
        self.ended.append(error.code)


def full_of(*connections: Fake) -> Room[Fake]:
    """A room that has no space left. All of these have sent a whole head."""
    room = Room[Fake](len(connections))
    for each in connections:
        room.enter(each)
        del room.strangers[each]
    return room


def test_the_oldest_that_waits_of_the_key_that_has_most_makes_room() -> None:
    other = Fake("other", waiting_s=LATER)
    busy, *slow = [Fake("greedy", waiting_s=seconds) for seconds in (0.0, 2.0, 3.0, 4.0)]
    room = full_of(other, busy, *slow)
    for _ in range(2):
        room.enter(new := Fake(made_at=LATER))
        assert new not in room.surplus
        del room.strangers[new]
    assert [each.ended for each in slow] == [*2 * [["too_many_connections"]], []]
    assert not busy.ended + other.ended


def test_nobody_makes_room_who_does_not_keep_the_server_waiting() -> None:
    busy, shortly, without_key = Fake("one"), Fake("one", waiting_s=SILENT_S / 2), Fake(waiting_s=9)
    room = full_of(busy, shortly, without_key)
    room.enter(new := Fake(made_at=LATER))
    assert new in room.surplus
    assert not [each for each in (busy, shortly, without_key) if each.ended]


def test_what_has_asked_for_nothing_goes_first() -> None:
    slow, silent = Fake("one", waiting_s=LATER), Fake()
    room = full_of(slow)
    room.max_connections = 2
    room.enter(silent)
    room.enter(new := Fake(made_at=LATER))
    assert new not in room.surplus
    assert (slow.ended, silent.ended) == ([], ["aborted"])
