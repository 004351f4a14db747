"""Every decoder of bytes that somebody else wrote, as a function of bytes, with valid examples.

A target may do two things with any input: come back, or raise the error that is documented for
it. Whatever else it raises is a finding. The same targets serve hypothesis, in the test suite, and
the coverage-guided fuzzer beside this file.
"""

import dataclasses
import json
import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from swarmtrain import checkpoint
from swarmtrain.checkpoint import CheckpointError
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.credit import card, lifetime, receipt
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.weights_file import head_bytes, places_in
from swarmtrain.peer.arithmetic import CodecArithmetic, codec_of
from swarmtrain.peer.disk import identity_file, ledger_file
from swarmtrain.peer.disk.group_storage import parse_result
from swarmtrain.peer.network.proxy import Proxy
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain.port_mapping.nat_pmp import NatPmp
from swarmtrain.port_mapping.pcp import Pcp
from swarmtrain.port_mapping.upnp import location_in
from swarmtrain_optimizers.codecs import CODECS
from swarmtrain_optimizers.codecs.base import IllegalPayload
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import ArraySpec, describe_state, manifest_from_bytes
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import InviteError, RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger import inner_products
from swarmtrain_transport.ledger.audit import (
    Drawn,
    Passed,
    Proof,
    Shown,
    charge_from_bytes,
    proof_from_bytes,
    shown_from_bytes,
)
from swarmtrain_transport.ledger.inner_products import NORMS, PRODUCTS, Table
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.links.allow_list import ZAP_DOMAIN, AllowList
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.pipeline.wire import control, encoding, orders, route
from swarmtrain_transport.pipeline.wire import messages as hops
from swarmtrain_transport.wire import frames, messages, unpacking
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, Wanted
from swarmtrain_transport.wire.messages import Challenge, Knock, Progress, Ready, Records, Welcome
from swarmtrain_transport.wire.records import (
    Attest,
    BodyReader,
    Freeze,
    SignedRoot,
    body_of,
    make_record,
    pack_struct,
    record_from_bytes,
)
from swarmtrain_transport.wire.sheets import (
    roots_in,
    roots_sheet,
    signatures_in,
    signatures_sheet,
)
from swarmtrain_transport.wire.short_records import Before, shortened
from tests.credit.real_ledger import bodies, ledger_of, receipts
from tests.transport.coordinator.ops.gather_table import gather_plan
from tests.transport.rig import A, B, begun_chain, join_body, plan_body, run_body, sign

HEADER = limits.HEADER_BYTES
CONFIG = RunConfig(RunSection("fuzzed"))
CODEC_NAMES = tuple("topk-5" if name == "topk" else name for name in CODECS)
WINDOWS = tuple(Window(name, 16, -24, 0) for name in CODEC_NAMES)


@dataclasses.dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        run: feeds it.
        allowed: what it may raise.
        examples: valid input to begin from.
    """

    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    examples: tuple[bytes, ...]

    def feed(self, data: bytes) -> bool:
        """Return True if the input was accepted. Anything but a documented refusal is raised."""
        try:
            self.run(data)
        except self.allowed:
            return False
        return True


# ---- the data lane


def _frame(data: bytes) -> None:
    frame = frames.unpack(data[:HEADER], data[HEADER:])
    assert len(frame.body) <= limits.FRAME_BYTES_MAX
    # What was accepted is a frame like our own.
    header, body = frames.pack(frame)
    assert frames.unpack(header, body) == frame


def _frame_behind_its_checksum(data: bytes) -> None:
    """The same, with length and checksum mended, so that a fuzzer gets behind them."""
    body = data[HEADER:]
    header = bytearray(data[:HEADER].ljust(HEADER, b"\0"))
    header[28:32] = len(body).to_bytes(4, "little")
    header[32:36] = content_hash(body)[:4]
    _frame(bytes(header) + body)


def _ranges(data: bytes) -> None:
    ranges = Ranges.unpack(data)
    assert Ranges.num_bytes(len(ranges.chunks)) == len(data)


def _codec(data: bytes) -> None:
    """A byte names codec and size, the rest is the payload. What passes decodes to numbers."""
    window = WINDOWS[(data[0] & 15) % len(WINDOWS)] if data else WINDOWS[0]
    num_values = 16 * (1 + (data[0] >> 4)) if data else 16
    payload = data[1:]
    CodecArithmetic().check(payload, num_values, window)
    decoded = codec_of(window).decode(payload, num_values, window)
    assert decoded.shape == (num_values,) and bool(torch.isfinite(decoded).all())


def _scalars(data: bytes) -> None:
    """A byte names what was asked for, the rest is a row or what FREEZE carries. What is believed
    can be added and told again."""
    kind = (NORMS, PRODUCTS)[data[0] & 1] if data else NORMS
    if data and data[0] & 2:
        table = Table(kind, (A, B))
        table.report({A: data[1:]})
        table.fits(A, 1.0, (A, B))
        return
    inner_products.check_totals(kind, (A, B), data[1:])
    assert all(math.isfinite(one) for one in inner_products.chosen(kind, (A, B), data[1:], (B,)))


def _zap(data: bytes) -> None:
    allowed = AllowList(A)
    allowed.admit(Address(B, b"k" * 32, "127.0.0.1", 1))
    reply, refusal = allowed.zap_reply(data.split(b"|"))
    assert (reply[2] == b"200") == (refusal is None)


def _address(data: bytes) -> None:
    host = data[4:].decode("latin-1")
    port = int.from_bytes(data[:4], "little", signed=True)
    AllowList(A).admit(Address(B, b"k" * 32, host, port))


# ---- pipelines


def _hop(data: bytes) -> None:
    """A byte names the kind of frame, two the message's length, the rest is the body."""
    kinds = sorted(encoding.HOP_FRAMES)
    kind = kinds[data[0] % len(kinds)] if data else kinds[0]
    length = int.from_bytes(data[1:3], "little")
    heard = encoding.unpack(Frame(kind, 7, chunk=length, body=data[3:]))
    # What was accepted is a message like our own.
    again = encoding.unpack(encoding.pack(7, heard.boot, heard.message, heard.payload))
    assert again == heard


def _hops() -> tuple[bytes, ...]:
    slot = route.Slot(b"receiver", 3)
    micro_batch = route.MicroBatch(A, b"source", 4, 1, 0, 5)
    form = hops.Payload("int8", (2, 3), 6)
    made = [
        encoding.pack(7, b"boot", message, bytes(6) if isinstance(message, hops.CARRIES) else b"")
        for message in (
            hops.Want(1, 2),
            hops.Invite(slot),
            hops.Forward(slot, micro_batch, bytes(16), 1, 6, form),
            hops.Gradient(slot, micro_batch, form),
            hops.Refuse(slot, micro_batch, hops.Reason.TRIES),
            hops.Arrived(micro_batch, slot, bytes(16)),
            hops.Go(micro_batch, slot, form),
            hops.Judged(micro_batch, bytes(16), 6, 1.5),
        )
    ]
    kinds = sorted(encoding.HOP_FRAMES)
    return tuple(
        bytes([kinds.index(frame.kind)]) + frame.chunk.to_bytes(2, "little") + bytes(frame.body)
        for frame in made
    )


def _report(data: bytes) -> None:
    found = control.report_of(data)
    assert control.report_of(control.pack_report(found)) == found


def _order(data: bytes) -> None:
    found = control.order_of(data)
    assert control.order_of(control.pack_order(found)) == found


def _words_on_pipelines() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Reports and orders."""
    me, span = route.Process(A, b"boot"), route.Span(0, 1)
    members = {A: orders.Member(b"boot", span)}
    some = orders.marks({3, 9, 10})
    made = orders.Made(some, {hops.Reason.LATE: some})
    reports = (
        orders.Drained(3, 2, 1, 7, 0),
        orders.Weighed(3, 2, 1, (1.0, None)),
        orders.Settled(3, (orders.Counted(me, 1, some),), made, dict.fromkeys(made.lost, 2)),
    )
    told = (
        orders.Welcome(members, 3, 2, 1, True),
        orders.Joined(A, members[A]),
        orders.Departed(me),
        orders.Begin(3, 7, members),
        orders.MakeStep(3, 2, 1, 7, 1.5),
        orders.Void(3, 2, 1, 7),
        orders.Evaluate((3, 2), me),
    )
    return (
        tuple(control.pack_report(one) for one in reports),
        tuple(control.pack_order(one) for one in told),
    )


BOUNDARIES = (
    *(Boundary(codec, (1, 2, 32)) for codec in ActivationCodec),
    Boundary(ActivationCodec.INT8, (1, 2, 32), Subspace(16, 32, 200, 0)),
)
IDS = torch.tensor([[7, 199]])


def _activations(data: bytes) -> None:
    """A byte names the codec, the rest is the payload. What passes decodes to numbers."""
    boundary = BOUNDARIES[data[0] % len(BOUNDARIES)] if data else BOUNDARIES[0]
    values, _ = boundary.decode_input(data[1:], boundary.input_form)
    assert values.shape == boundary.shape and bool(torch.isfinite(values).all())


# ---- files


def _in_file(read: Callable[[Path], object], name: str = "file") -> Callable[[bytes], object]:
    """A decoder that wants a path."""

    def run(data: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="swarmtrain-fuzz-") as folder:
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_bytes(data)
            return read(path)

    return run


def _identity_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "identity.json"
        identity_file.save(Identity.from_secrets(b"p" * 32, b"q" * 32), path)
        return path.read_bytes()


def _checkpoint_manifest() -> bytes:
    from swarmtrain.models.tensors import Layout

    with tempfile.TemporaryDirectory() as folder:
        layout = Layout.of(torch.nn.Linear(3, 2), 4)
        state = [(name, torch.zeros(layout.padded)) for name in ("anchor", "momentum")]
        facts = checkpoint.RunFacts("fuzzed", bytes(32), 3, bytes(32))
        saved = checkpoint.save(Path(folder), facts, layout, state)
        return (saved.path / "manifest.json").read_bytes()


def _totals(path: Path) -> object:
    one = lifetime.loaded(path)
    return one and card.drawn([one]) and lifetime.total_words([one])


LIFETIME = lifetime.Lifetime("run", "aa", "bb", merged={0: {1, 2, 3}})


# ---- the list


def _pack(*found: messages.Message) -> tuple[bytes, ...]:
    return tuple(messages.encode(message) for message in found)


def _frames() -> tuple[bytes, ...]:
    bodies = (b"", b"dense body", bytes(5000), bytes(range(256)) * 20)
    made = [Frame(kind, 7, 8, 1, 2, 3, 4, body) for kind in FrameKind for body in bodies]
    return tuple(header + bytes(body) for header, body in map(frames.pack, made))


REMOTE = (RemoteFault,)
RECORD = make_record(0, bytes(32), 1, run_body(), sign)
JOINED = make_record(1, RECORD.hash, 1, join_body(A), sign)
PLANNED = make_record(2, JOINED.hash, 1, plan_body((A, B)), sign)
GATHER = make_record(3, PLANNED.hash, 1, gather_plan((A, B)), sign)
READER = BodyReader()
READER.read(GATHER)
ATTEST = Attest(1, bytes(32), roots=((A, bytes(32)),))
ATTESTED = make_record(4, GATHER.hash, 1, ATTEST, sign, READER)
FREEZE = Freeze(1, (A, B), {}, scalars=struct.pack("<2d", 1.0, 2.0))
FROZEN = make_record(5, ATTESTED.hash, 1, FREEZE, sign, READER)
RECORDS = (RECORD, JOINED, PLANNED, GATHER, ATTESTED, FROZEN)
CHAIN = begun_chain((A, B))
CHAIN.add(CHAIN.plan())
CANONICAL = config_file.canonical(CONFIG)


def _data_targets() -> dict[str, Target]:
    reports, told = _words_on_pipelines()
    chunks = tuple(bytes([0x10 + index]) + chunk for index, chunk in enumerate(CODEC_EXAMPLES))
    handshake = [b"1.0", b"1", ZAP_DOMAIN, b"", b"", b"CURVE", b"k" * 32]
    return {
        "frame": Target(_frame, REMOTE, _frames()),
        "frame-body": Target(_frame_behind_its_checksum, REMOTE, _frames()),
        "ranges": Target(_ranges, REMOTE, (Ranges(1, 2, (True, False, True) * 5).pack(),)),
        "credit": Target(frames.unpack_credit, REMOTE, (frames.pack_credit(1 << 40),)),
        "get": Target(Wanted.unpack, REMOTE, (Wanted(bytes(32)).pack(), Wanted(A, 8, 9).pack())),
        "codec": Target(_codec, REMOTE, chunks),
        "hop": Target(_hop, REMOTE, _hops()),
        "report": Target(_report, REMOTE, reports),
        "order": Target(_order, REMOTE, told),
        "activations": Target(
            _activations,
            (IllegalPayload,),
            tuple(
                bytes([index])
                + boundary.encode_input(torch.linspace(-2.0, 2.0, 64).reshape(1, 2, 32), IDS)
                for index, boundary in enumerate(BOUNDARIES)
            ),
        ),
        "handshake": Target(_zap, (), (b"|".join(handshake),)),
        "address": Target(_address, REMOTE, (b"\1\0\0\x00192.0.2.7", b"\1\0\0\0::1")),
    }


def _values(data: bytes) -> None:
    """The count of values is right wherever msgpack itself takes the bytes."""
    found = unpacking.num_values_in(data, limits.VALUES_MAX)
    assert 1 <= found <= len(data)


def _control_targets() -> dict[str, Target]:
    hello = messages.Hello(
        b"boot",
        "name",
        bytes(32),
        "host",
        1,
        3,
        bytes(32),
        1 << 30,
        states=(messages.Applied(2, bytes(32)), messages.Applied(1, bytes(32), group=1)),
    )
    from_peer = _pack(
        Knock(1, A, b"token", messages.encode(hello), b"s" * 64),
        hello,
        Ready(3, 8, 2, bytes(32)),
        Ready(3, 8, 2, bytes(32), 1.5, True),
        Progress(1, 2, 3, "training"),
        messages.Got(1, 2, 3, {A: B}, {B: "scale"}),
        messages.Got(1, 2, 3, {A: B}, {}, {A: struct.pack("<2d", 1.0, math.nan)}),
        messages.Roots(1, (A, B), bytes(64)),
        messages.Roots(1, (A, B), bytes(64), (0.0, 1e300)),
        messages.SliceDone(1, 2, 3, 4, (A, B), bytes(32), bytes(64)),
        messages.SliceDone(1, 2, 3, 4, (A, B), bytes(32), bytes(64), (A, B, A, B)),
        messages.Accuse(1, A),
        messages.Applied(3, bytes(32), bytes(32)),
        messages.Have(1, 2, 3, 4, (True, False)),
        messages.joined([messages.Have(1, i, 3, 4, (True,), A) for i in range(3)]),
    )
    from_coordinator = _pack(
        Challenge(b"n" * 32, (1,)),
        Welcome(1, "run", A, CANONICAL, 5),
        Records(0, tuple(record.to_bytes() for record in RECORDS)),
        messages.Hashes(1, 2, 3, 4, (bytes(32),)),
        messages.joined([messages.Hashes(1, i, 3, 4, (A,)) for i in range(3)]),
        messages.Accused(1, A),
        messages.Sheet(1, bytes(40), made=(A, B)),
    )
    return {
        "from-peer": Target(messages.decode_from_peer, REMOTE, from_peer),
        "values": Target(_values, REMOTE, from_peer),
        "from-coordinator": Target(messages.decode_from_coordinator, REMOTE, from_coordinator),
    }


def _image(data: bytes) -> None:
    # What was accepted is an image like our own.
    assert image_of(*from_image(data)) == data


def _ledger_targets() -> dict[str, Target]:
    shown = Shown((A, B), (bytes(32),), b"part")
    passed = Passed((A,), bytes(16))
    proof = Proof(1, 2, 3, (A,), {B: shown}, 0, {1: passed}, (A, B))
    manifest, _ = describe_state(bytes(32), (ArraySpec("anchor", 8),), bytes(32))
    return {
        "record": Target(
            lambda data: body_of(record_from_bytes(data), GATHER.body),
            REMOTE,
            tuple(record.to_bytes() for record in RECORDS),
        ),
        "record-body": Target(
            lambda data: body_of(msgspec.structs.replace(RECORD, body=data), GATHER.body),
            REMOTE,
            tuple(record.body for record in RECORDS),
        ),
        "scalars": Target(
            _scalars,
            REMOTE,
            tuple(bytes([kind]) + bytes(8 * n) for kind, n in enumerate((2, 3, 1, 2))),
        ),
        "evidence": Target(shown_from_bytes, REMOTE, (pack_struct(shown),)),
        "proof": Target(proof_from_bytes, REMOTE, (proof.to_bytes(),)),
        "charge": Target(
            lambda data: charge_from_bytes(data, Drawn(A, 2, 3, A, (B,), 0, 2, (1,), False)),
            REMOTE,
            (proof.charge.to_bytes(),),
        ),
        "short-record": Target(
            READER.record,
            REMOTE,
            (
                shortened(FROZEN.to_bytes(), 5),
                shortened(PLANNED.to_bytes(), 2, Before(0, 1, GATHER.body)),
            ),
        ),
        "roots-sheet": Target(
            lambda data: roots_in(data, (A, B)),
            REMOTE,
            (roots_sheet({A: SignedRoot(A, bytes(64))}, (A, B)),),
        ),
        "signatures-sheet": Target(
            lambda data: signatures_in(data, 2), REMOTE, (signatures_sheet([bytes(64), b""]),)
        ),
        "image": Target(_image, REMOTE, (image_of(CHAIN.view, CHAIN.ledger.reader),)),
        "manifest": Target(manifest_from_bytes, REMOTE, (manifest.to_bytes(),)),
    }


def _weights_head() -> bytes:
    """The beginning of a safetensors file, with its head where a decoder is given it."""
    place = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    head = json.dumps({"__metadata__": {"format": "pt"}, "a": place}).encode()
    return len(head).to_bytes(8, "little") + head


def _file_targets() -> dict[str, Target]:
    invite = Invite("127.0.0.1", 8400, "tiny", bytes(range(32)), bytes(range(16)))
    segments = (ledger_file.segment_of([RECORD, JOINED]) * 2, ledger_file.segment_of([]))
    return {
        "invite": Target(
            lambda data: Invite.parse(data.decode("utf-8", "replace")),
            (InviteError,),
            (str(invite).encode(), str(dataclasses.replace(invite, host="::1")).encode()),
        ),
        "pcp": Target(
            Pcp("192.168.1.5", 9000, bytes(12)).read,
            (),
            (
                bytes.fromhex("0281000000000078")
                + bytes(28)
                + bytes.fromhex("0600000023282328")
                + bytes(16),
            ),
        ),
        "nat-pmp": Target(
            NatPmp(9000).read,
            (),
            (
                bytes.fromhex("0082000000000001232823280000003c"),
                bytes.fromhex("0080000000000001cb007107"),
            ),
        ),
        "ssdp": Target(
            lambda data: location_in(data, "192.168.1.1"),
            (),
            (b"HTTP/1.1 200 OK\r\nLocation: http://192.168.1.1:49000/igd.xml\r\n\r\n",),
        ),
        "proxy": Target(
            lambda data: Proxy.parse(data.decode("utf-8", "replace")),
            (UserError,),
            (b"http://otter:horse%20battery@192.0.2.7:3128", b"[2001:db8::1]:80", b"a.example"),
        ),
        "run-canonical": Target(config_file.from_canonical, (RemoteFault, UserError), (CANONICAL,)),
        "run-file": Target(
            _in_file(config_file.load),
            (UserError,),
            (b'[run]\nname = "a"\n[exchange]\nblock = 64\n',),
        ),
        "receipt": Target(receipt.checked, (UserError,), (receipts(ledger_of(bodies()))[2],)),
        "lifetime": Target(_in_file(_totals), (), (msgspec.json.encode(LIFETIME),)),
        "ledger-file": Target(ledger_file.parse, (), segments),
        "weights-head": Target(
            lambda data: places_in(data[8 : 8 + head_bytes(data[:8])], 1 << 40),
            (ValueError,),
            (_weights_head(),),
        ),
        "result-file": Target(parse_result, (), (msgspec.msgpack.encode([[b"a", b"b"], [b"c"]]),)),
        "identity": Target(
            _in_file(identity_file.load), (identity_file.IdentityDamaged,), (_identity_bytes(),)
        ),
        "checkpoint": Target(
            _in_file(lambda path: checkpoint.load(path.parent), "manifest.json"),
            (CheckpointError,),
            (_checkpoint_manifest(),),
        ),
    }


CODEC_EXAMPLES = tuple(
    codec_of(window).encode(torch.linspace(-0.5, 0.5, 32), window) for window in WINDOWS
)
TARGETS = _data_targets() | _control_targets() | _ledger_targets() | _file_targets()
