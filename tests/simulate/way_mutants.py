"""The rules of meetings (protocol.md T21), broken one at a time as in `broken_rules`, in worlds in
which peers are behind routers.

| what is broken | mutant: seed, invariant |
|---|---|
| a token is used twice: at the coordinator's port, for another try | R1: 14, W1; R2: 0, W1 |
| a relay is kept after its failure, or relays for itself | R3: 8, W2; R4: 21, W3 |
| a way is never tried again | R5: 15, W2 |
| a receiver takes a way down | R6: 3, W4 |
| a word on a try that was given up makes a way | R7: 5, W4 |
"""

from dataclasses import replace
from functools import partial

from broken_rules import Mutant, replaced

from swarmtrain.simulate.seeds import world_of
from swarmtrain.simulate.world import World
from swarmtrain_transport.coordinator.members.meetings import Meetings
from swarmtrain_transport.coordinator.members.whereabouts import Route
from swarmtrain_transport.links.ways import Way

PEERS, OPS = 4, 6


def behind_routers(seed: int) -> World:
    return world_of(seed, PEERS, OPS, routers=True)


def a_token_is_taken_again():
    def make(takes):
        def careless(self, token, side):
            meeting = self._by_token.get(token)
            seen = {} if meeting is None else meeting.seen
            taken = seen.pop(side, None)
            way = takes(self, token, side)
            if taken is not None and side not in seen:
                seen[side] = taken
            return way

        return careless

    return replaced(Meetings, "takes", make)


def each_pair_has_one_token():
    def make(try_):
        def again(self, pair, route, now_s):
            means, token = self._means, self.__dict__.setdefault("_tokens", {})
            key = pair.sender, pair.receiver
            token = token.setdefault(key, means.draw_token())
            self._means = replace(means, draw_token=lambda: token)
            try:
                try_(self, pair, route, now_s)
            finally:
                self._means = means

        return again

    return replaced(Meetings, "_try", make)


def a_relay_is_kept():
    def make(lose):
        def loyal(self, pair, reason, now_s):
            if pair.standing.route.way is not Way.RELAYED:
                lose(self, pair, reason, now_s)

        return loyal

    return replaced(Meetings, "_lose", make)


def whoever_relays_does_so_for_itself():
    def make(routes):
        def careless(self, pair, now_s):
            direct = [one for one in routes(self, pair, now_s) if one.way is not Way.RELAYED]
            yield from direct
            for relay, port in self.relays.ranked(now_s):
                if relay in (pair.sender, pair.receiver):
                    yield Route(Way.RELAYED, port=port, relay=relay)
            yield from (one for one in routes(self, pair, now_s) if one not in direct)

        return careless

    return replaced(Meetings, "_routes", make)


def no_second_round_of_tries():
    def make(rest):
        def tired(self, pair, now_s):
            rest(self, pair, now_s)
            pair.due_s = float("inf")

        return tired

    return replaced(Meetings, "_rest", make)


def a_receivers_word_is_believed():
    def make(met):
        def credulous(self, peer, message, now_s):
            meeting = self._by_token.get(message.token)
            if meeting is not None and not message.is_up:
                peer = meeting.sender
            met(self, peer, message, now_s)

        return credulous

    return replaced(Meetings, "met", make)


def words_on_void_tries_count():
    def make(release):
        def forgetful(self, meeting):
            release(self, meeting)
            self._void.clear()

        return forgetful

    return replaced(Meetings, "_release", make)


_worlds = partial(Mutant, world=behind_routers)

WAY_MUTANTS = {
    "R1": _worlds("a token is taken twice at the port", a_token_is_taken_again, (("W1", ""),)),
    "R2": _worlds("a pair's tries have one token", each_pair_has_one_token, (("W1", ""),)),
    "R3": _worlds("a relay is kept after its failure", a_relay_is_kept, (("W2", ""),)),
    "R4": _worlds(
        "a relay carries its own", whoever_relays_does_so_for_itself, (("W3", ""),),
    ),
    "R5": _worlds("ways are not tried again", no_second_round_of_tries, (("W2", ""),)),
    "R6": _worlds("a receiver takes a way down", a_receivers_word_is_believed, (("W4", ""),)),
    "R7": _worlds(
        "a word on a try that was given up makes a way", words_on_void_tries_count,
        (("W2", ""), ("W4", "")),
    ),
}  # fmt: skip
