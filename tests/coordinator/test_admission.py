from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarmtrain.config.settings import AdmissionSection
from swarmtrain.coordinator.disk.certificate import KeyFiles, load_or_create
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.admission import (
    ADDRESSES_MAX,
    ARRIVALS_AT_ONCE,
    ARRIVALS_PER_S,
    EXPECTED_MAX,
    FAILED_KNOCKS_MAX,
    FAILED_WINDOW_S,
    GRACE_S,
    HOUSEHOLD,
    NEWCOMERS_AT_ONCE,
    NEWCOMERS_PER_S,
    STRANGERS_MAX,
    STRANGERS_PER_NETWORK,
    Door,
    DoorClosed,
    Doorstep,
    FailedKnocks,
    add_invite,
    standing_invite,
)
from swarmtrain.foundation.error_table import TABLE
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.wire.messages import Knock, Leave, encode
from tests.coordinator.rig import SECRET, WALL_S, Chain, hello_of, join_body, run_body

CERT = b"c" * 32
NONCE = b"n" * 32
ALICE, BOB = Identity.create(), Identity.create()


class Scene:
    """A door with a store behind it."""

    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory)
        self.chain = Chain(self.store.term)
        self.store.append(self.chain.next(run_body()))
        self.num_in = 0
        self.banned: set[bytes] = set()
        self.wall_s = WALL_S
        self.door = Door(
            self.store, CERT, peers_max=4, others_in=lambda peer, by_invite: self.num_in,
            is_banned=self.banned.__contains__,
            wall_clock=lambda: self.wall_s,
        )  # fmt: skip

    def invite(self, uses_max: int = 0, expires_at: float = 0.0, secret: bytes = SECRET) -> str:
        row = add_invite(
            self.store, secret, uses_max=uses_max, expires_at=expires_at, wall_s=WALL_S
        )
        return row.invite_id

    def lets_in(self, who: Identity, token: bytes = SECRET, **changes: object) -> str:
        """The invite id that the admission would count on."""
        now_s = float(str(changes.pop("now_s", 0.0)))
        address = str(changes.pop("address", "192.0.2.7"))
        return self.door.judge(knock(who, token, **changes), NONCE, address, now_s).invite_id

    def refuses(self, who: Identity, token: bytes = SECRET, **changes: object) -> str:
        with pytest.raises(DoorClosed) as caught:
            self.lets_in(who, token, **changes)
        assert caught.value.code in TABLE and caught.value.text
        return caught.value.code


def knock(who: Identity, token: bytes, **changes: object) -> Knock:
    hello = encode(hello_of(who))
    values: dict[str, object] = {
        "version": limits.PROTOCOL_VERSION, "peer_id": who.peer_id, "token": token, "hello": hello,
        "signature": who.sign(knock_payload(NONCE, CERT, hello)),
    }  # fmt: skip
    return Knock(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.store.close()


def test_an_invite_lets_a_new_key_in_and_is_used_only_by_its_join(scene: Scene) -> None:
    invite_id = scene.invite(uses_max=1)
    assert scene.lets_in(ALICE) == scene.lets_in(ALICE) == invite_id
    assert scene.refuses(BOB) == "SWT-E311"
    scene.door.forget(ALICE.peer_id)
    assert scene.lets_in(BOB) == invite_id
    scene.door.forget(BOB.peer_id)
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id, invite_id)))
    assert scene.refuses(BOB) == "SWT-E311"


def test_a_key_that_was_let_in_needs_no_invite_again(scene: Scene) -> None:
    invite_id = scene.invite(uses_max=1, expires_at=WALL_S + 60.0)
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id, invite_id)))
    scene.wall_s += 61.0
    scene.store.revoke_invite(invite_id)
    assert scene.lets_in(ALICE, b"") == scene.lets_in(ALICE, b"nonsense") == ""


def test_a_forged_or_cut_secret_is_unknown(scene: Scene) -> None:
    scene.invite()
    assert scene.refuses(ALICE, b"f" * 16) == "SWT-E313"
    assert scene.refuses(ALICE, SECRET[:15]) == "SWT-E313"
    assert scene.refuses(ALICE, b"") == "SWT-E313"


def test_an_expired_and_a_revoked_invite_are_told_apart(scene: Scene) -> None:
    invite_id = scene.invite(expires_at=WALL_S + 60.0)
    scene.wall_s = WALL_S + 59.9
    assert scene.lets_in(ALICE) == invite_id
    scene.wall_s = WALL_S + 60.0
    assert scene.refuses(ALICE) == "SWT-E314"
    scene.store.revoke_invite(invite_id)
    assert scene.refuses(ALICE) == "SWT-E315"


def test_a_closed_run_lets_nobody_new_in_and_members_as_ever(scene: Scene) -> None:
    invite_id = scene.invite()
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id, invite_id)))
    scene.store.close_door(closed=True)
    assert scene.refuses(BOB) == "SWT-E707"
    assert scene.lets_in(ALICE, b"") == ""
    scene.store.close_door(closed=False)
    assert scene.lets_in(BOB) == invite_id


def test_a_banned_key_is_told_why_once_it_has_proved_that_it_is_the_one(scene: Scene) -> None:
    invite_id = scene.invite()
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id, invite_id)))
    scene.store.note_ban(ALICE.peer_id, "You sent noise.")
    scene.banned.add(ALICE.peer_id)
    with pytest.raises(DoorClosed, match="You sent noise") as caught:
        scene.lets_in(ALICE)
    assert caught.value.code == "SWT-E702"
    assert scene.refuses(ALICE, signature=b"") == "SWT-E303"
    scene.banned.add(BOB.peer_id)
    with pytest.raises(DoorClosed, match=r"banned this peer[.]"):
        scene.lets_in(BOB)
    scene.banned.clear()
    assert scene.lets_in(ALICE, b"") == ""


def test_a_banned_key_that_knocks_again_and_again_is_slowed_like_a_stranger(scene: Scene) -> None:
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id)))
    scene.banned.add(ALICE.peer_id)
    codes = [scene.refuses(ALICE) for _ in range(FAILED_KNOCKS_MAX + 1)]
    assert codes == ["SWT-E702"] * FAILED_KNOCKS_MAX + ["SWT-E704"]


def test_who_came_by_a_withdrawn_invite_stays_or_needs_another(scene: Scene) -> None:
    invite_id = scene.invite()
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id, invite_id)))
    assert scene.store.admitted_by(invite_id) == (ALICE.peer_id,)
    scene.store.revoke_invite(invite_id)
    assert scene.lets_in(ALICE) == ""
    scene.store.revoke_invite(invite_id, with_members=True)
    assert scene.refuses(ALICE) == "SWT-E315" and scene.store.admitted_by(invite_id) == ()


def test_a_signature_by_another_key_over_another_nonce_or_certificate_is_refused(
    scene: Scene,
) -> None:
    scene.invite()
    hello = encode(hello_of(ALICE))
    for signature in (
        BOB.sign(knock_payload(NONCE, CERT, hello)),
        ALICE.sign(knock_payload(b"o" * 32, CERT, hello)),
        ALICE.sign(knock_payload(NONCE, b"d" * 32, hello)),
        ALICE.sign(knock_payload(NONCE, CERT, encode(hello_of(ALICE, name="badger")))),
        b"",
    ):
        assert scene.refuses(ALICE, signature=signature) == "SWT-E303"


def test_a_member_must_prove_its_key_too(scene: Scene) -> None:
    scene.store.append(scene.chain.next(join_body(ALICE.peer_id)))
    hello = encode(hello_of(ALICE))
    stolen = BOB.sign(knock_payload(NONCE, CERT, hello))
    assert scene.refuses(ALICE, b"", signature=stolen) == "SWT-E303"


@pytest.mark.parametrize(
    ("version", "word"),
    [(limits.PROTOCOL_VERSION - 1, "older"), (limits.PROTOCOL_VERSION + 1, "newer")],
)
def test_an_older_and_a_newer_version_are_told_who_must_update(
    scene: Scene, version: int, word: str
) -> None:
    scene.invite()
    with pytest.raises(DoorClosed, match=word) as caught:
        scene.lets_in(ALICE, version=version)
    assert caught.value.code == "SWT-E703"


def test_a_full_run_asks_to_try_later(scene: Scene) -> None:
    scene.invite()
    scene.num_in = 4
    assert scene.refuses(ALICE) == "SWT-E701"
    scene.num_in = 3
    assert scene.lets_in(ALICE)


def test_a_hello_that_is_none_is_refused(scene: Scene) -> None:
    scene.invite()
    for hello in (encode(Leave()), b"\xc1", b""):
        signature = ALICE.sign(knock_payload(NONCE, CERT, hello))
        assert scene.refuses(ALICE, hello=hello, signature=signature) == "SWT-E501"


def test_an_address_that_fails_too_often_waits_a_minute_but_members_do_not(scene: Scene) -> None:
    scene.invite()
    scene.store.append(scene.chain.next(join_body(BOB.peer_id)))
    for _ in range(FAILED_KNOCKS_MAX):
        assert scene.refuses(ALICE, b"f" * 16, now_s=10.0) == "SWT-E313"
    assert scene.refuses(ALICE, now_s=10.0 + FAILED_WINDOW_S - 0.1) == "SWT-E704"
    assert scene.lets_in(ALICE, now_s=11.0, address="192.0.2.8")
    assert scene.lets_in(BOB, b"", now_s=11.0) == ""
    assert scene.lets_in(ALICE, now_s=10.0 + FAILED_WINDOW_S)


def test_success_does_not_count_as_a_failed_try(scene: Scene) -> None:
    scene.invite()
    for _ in range(3 * FAILED_KNOCKS_MAX):
        assert scene.lets_in(ALICE)


def test_one_household_is_one_address_also_with_ipv6() -> None:
    failed = FailedKnocks()
    for number in range(FAILED_KNOCKS_MAX):
        failed.note(f"2001:db8:1:2::{number:x}%eth0", 0.0)
    assert failed.are_too_many("2001:db8:1:2:ffff::1", 1.0)
    assert not failed.are_too_many("2001:db8:1:3::1", 1.0)
    assert not failed.are_too_many("not an address", 1.0)


def test_only_so_many_addresses_are_remembered() -> None:
    failed = FailedKnocks()
    for number in range(ADDRESSES_MAX + 900):
        failed.note(f"10.0.{number // 250}.{number % 250}", 0.0)
    assert len(failed._tries) == ADDRESSES_MAX


def test_the_standing_invite_is_the_same_until_it_opens_nothing(tmp_path: Path) -> None:
    keys = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    settings = AdmissionSection(invite_uses=1, invite_expires_hours=1.0)
    store = Store.open(tmp_path)
    chain = Chain(store.term)
    store.append(chain.next(run_body()))
    first = standing_invite(store, keys, settings, WALL_S)
    assert standing_invite(store, keys, settings, WALL_S + 3599.0) == first
    second = standing_invite(store, keys, settings, WALL_S + 3600.0)
    assert second != first and standing_invite(store, keys, settings, WALL_S + 3601.0) == second
    row = store.invites()[-1]
    store.append(chain.next(join_body(b"a" * 32, row.invite_id)))
    assert standing_invite(store, keys, settings, WALL_S + 3602.0) not in (first, second)
    store.close()
    content = (tmp_path / "ledger.sqlite").read_bytes()
    assert first not in content and second not in content


# ---- before the door


class Crowd:
    """Strangers are numbers."""

    def __init__(self) -> None:
        self.step: Doorstep[int] = Doorstep()
        self.came = 0

    def come(self, address: str, count: int = 1, now_s: float = 0.0) -> list[int]:
        """So many more; the answer is who had to go for them."""
        gone = []
        for _ in range(count):
            self.came += 1
            loser = self.step.enter(self.came, address, now_s)
            gone += [] if loser is None else [loser]
        return gone


def test_a_flood_from_one_network_takes_the_place_of_its_own() -> None:
    crowd = Crowd()
    assert crowd.come("192.0.2.1", STRANGERS_PER_NETWORK) == []
    assert crowd.come("192.0.2.1", 3) == [1, 2, 3], "the oldest of that network"
    assert crowd.come("192.0.2.1", 1000)[-1] == crowd.came, "it comes too fast: not even in"
    assert len(crowd.step) == STRANGERS_PER_NETWORK
    assert crowd.come("192.0.2.2", 10) == []


def test_a_flood_from_everywhere_costs_the_most_numerous_their_oldest() -> None:
    crowd = Crowd()
    assert crowd.come("192.0.2.9") == []
    assert crowd.come("2001:db8::1", STRANGERS_PER_NETWORK) == []
    gone = [crowd.come(f"198.51.100.{number}") for number in range(200)]
    room = STRANGERS_MAX - STRANGERS_PER_NETWORK - 1
    assert not any(gone[:room]) and gone[room] == [2]
    assert len(crowd.step) == STRANGERS_MAX


def test_where_all_have_just_come_newcomers_are_sent_away_or_nobody_would_ever_come_in() -> None:
    crowd = Crowd()
    assert not any(crowd.come(f"198.51.100.{number // HOUSEHOLD}") for number in range(128))
    assert crowd.come("203.0.113.1", now_s=GRACE_S - 1.0) == [crowd.came]
    assert crowd.come("203.0.113.1", now_s=GRACE_S) == [1], "it has had its time"
    assert len(crowd.step) == STRANGERS_MAX


def test_who_waits_for_its_turn_is_not_pushed_out_and_not_too_many_wait() -> None:
    crowd = Crowd()
    for number in range(EXPECTED_MAX - 1):
        assert not crowd.come(f"198.51.100.{number}", now_s=number / 10)
        assert crowd.step.expect(crowd.came) and crowd.step.expect(crowd.came)
    first = crowd.came + 1
    for number in range(STRANGERS_MAX + 10):
        gone = crowd.come(f"203.0.113.{number}", now_s=100.0 + number)
        assert gone == ([first + number - STRANGERS_MAX] if number >= STRANGERS_MAX else [])
    assert len(crowd.step) == len([*crowd.step]) == STRANGERS_MAX + EXPECTED_MAX - 1
    assert not crowd.step.expect(first), "it had to go"
    assert crowd.step.expect(crowd.came) and not crowd.step.expect(crowd.came - 1)
    assert crowd.come("192.0.2.1", now_s=1000.0) == [crowd.came], "it is sent away before TLS"
    for stranger in range(1, EXPECTED_MAX):
        crowd.step.leave(stranger, was_let_in=True)
        crowd.step.leave(stranger, was_let_in=True)
    assert len(crowd.step) == STRANGERS_MAX


def test_who_comes_back_pushes_out_those_who_have_just_come_and_no_other_member() -> None:
    crowd = Crowd()
    for number in range(STRANGERS_MAX):
        assert not crowd.come(f"192.0.2.{number}")
        crowd.step.leave(crowd.came, was_let_in=True)
    assert not any(crowd.come(f"198.51.100.{number}", now_s=9.0) for number in range(28))
    first = crowd.came + 1
    assert not any(crowd.come(f"192.0.2.{number}", now_s=9.0) for number in range(100))
    gone = [crowd.come(f"192.0.2.{number}", now_s=9.0) for number in range(100, 128)]
    assert gone == [[one] for one in range(first - 28, first)]
    assert crowd.come("192.0.2.99", now_s=9.0) == [crowd.came]


def test_who_comes_again_and_again_is_slowed_down() -> None:
    crowd = Crowd()
    taken = 0
    for tick in range(1000):
        if not crowd.come("192.0.2.1", now_s=tick * 0.01):
            crowd.step.leave(crowd.came, was_let_in=False)
            taken += 1
    assert taken <= ARRIVALS_AT_ONCE + 10 * ARRIVALS_PER_S + 1
    assert crowd.come("192.0.2.1", 8, 10.0 + 8 / ARRIVALS_PER_S) == []


def test_a_school_that_is_let_in_is_not_slowed_down() -> None:
    crowd = Crowd()
    for _ in range(50):
        first = crowd.came
        assert crowd.come("192.0.2.1", STRANGERS_PER_NETWORK) == []
        for stranger in range(first + 1, crowd.came + 1):
            crowd.step.leave(stranger, was_let_in=True)
            crowd.step.leave(stranger, was_let_in=True)
    assert not len(crowd.step)


def test_a_flood_from_very_many_networks_is_let_through_at_a_pace() -> None:
    crowd = Crowd()
    assert crowd.come("192.0.2.1") == []
    crowd.step.leave(crowd.came, was_let_in=True)
    taken = 0
    for tick in range(10_000):  # 1 000 a second, for ten seconds, from 125 networks
        refused = crowd.come(f"198.51.100.{tick % 125}", now_s=tick * 0.001)
        taken += crowd.came not in refused
        crowd.step.leave(crowd.came, was_let_in=False)
        if tick % 1000 == 999:
            assert crowd.come("192.0.2.1", now_s=tick * 0.001) == [], "of a member's network"
            crowd.step.leave(crowd.came, was_let_in=True)
            assert crowd.come(f"203.0.113.{tick // 1000}", now_s=tick * 0.001) == [], "it is new"
            crowd.step.leave(crowd.came, was_let_in=False)
    assert taken <= 2 * NEWCOMERS_AT_ONCE + 10 * 2 * NEWCOMERS_PER_S


def test_addresses_of_one_customer_count_together() -> None:
    crowd = Crowd()
    for number in range(200):
        crowd.come(f"2001:db8::{number:x}")
    assert len(crowd.step) == STRANGERS_PER_NETWORK


def test_passers_by_are_forgotten() -> None:
    crowd = Crowd()
    for number in range(2 * ADDRESSES_MAX):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        assert not crowd.come(address, now_s=number / NEWCOMERS_PER_S)
        crowd.step.leave(crowd.came, was_let_in=False)
    assert len(crowd.step._arrivals) <= ADDRESSES_MAX and not len(crowd.step)
    assert not crowd.step._numbers


def test_who_proves_that_it_was_in_needs_no_invite_and_who_claims_a_copy_does(scene: Scene) -> None:
    """The ledger is lost, and with it whom the store had let in."""
    scene.door._proves = lambda peer, hello: peer == ALICE.peer_id
    hello = encode(msgspec.structs.replace(hello_of(BOB), head_index=10**9, head_hash=bytes(32)))
    invite_id = scene.invite()
    assert scene.lets_in(ALICE, b"") == ""
    signature = BOB.sign(knock_payload(NONCE, CERT, hello))
    assert scene.refuses(BOB, b"", hello=hello, signature=signature) == "SWT-E313"
    assert scene.lets_in(BOB, hello=hello, signature=signature) == invite_id
    for _ in range(FAILED_KNOCKS_MAX):
        scene.refuses(BOB, b"")
    assert scene.refuses(BOB) == "SWT-E704"
    assert scene.lets_in(ALICE, b"") == "", "guesses from its address lock it out"
