"""Every bound of the protocol, with its reason. Nothing else in this part holds a magic number."""

PROTOCOL_VERSION = 8
"""Version of messages and records, told at the door; 2 names members by their place in PLAN, 3
tells who cannot be reached, and how much of a state has come, 4 keeps addresses out of the
ledger, 5 has parts before RANGES and HAVE before HASHES, 6 has cells, 7 has sums of cells that two
owners name, and images that name each key once, 8 asks for smaller pieces of a state."""

FRAME_VERSION = 1
"""In the header of every data frame."""

RUN_VERSION = 1
"""In RUN, whose hash decides who is drawn with whom: it changes with the rules of a run alone."""

HASH_BYTES = 32
"""SHA-256 and BLAKE3: collision resistance against hostile peers."""

KEY_BYTES = 32
"""Ed25519 and X25519 public keys."""

BOOT_BYTES_MAX = 64
"""A boot is drawn, not chosen: half of this is more than enough."""

COUNT_MAX = 2**63 - 1
"""Largest number of anything: it fits a signed word in every language."""

HEADER_BYTES = 48
"""A fixed header can be refused before anything is parsed."""

CHUNK_VALUES = 262_144
"""Values in one wire chunk: int8 gives 256 KiB, where the cost per CURVE frame is amortised
and a 10 Mbit/s link still shows progress every 0.2 s."""

CHUNKS_LEAST = 16
CHUNK_VALUES_LEAST = 32_768
"""Chunks that a slice has at least, and the least length of those that this makes: a result is on
its way while later parts still come, so a vector that takes a few round trips does not wait for one
of them between its parts and its results. A shorter chunk costs more than it saves."""

STATE_CHUNK_BYTES = 4 << 20
"""Part of the state that one hash vouches for, and that a joiner that died need not fetch again: a
model of 50 M values has 100 of them, so its manifest is small."""

STATE_PIECE_BYTES = 128 << 10
"""Piece that is asked of a donor at a time: several may share a small model, a link of 1 Mbit/s
shows progress every second, and an exchange that begins waits for no more than that."""

PIECE_WINDOW_MIN = 4
PIECE_WINDOW_MAX = 256
"""Pieces under way from one donor: 1 Gbit/s at a delay of 0.25 s."""

JOINER_SHARE = 0.15
"""Share of a donor's uplink for joiners while an op is under way. Where an exchange takes a fifth
of a round it is longer by 0.15 / 0.85, so the round by 3.5 %; and a joiner whose link four donors
can fill still has 92 % of it."""

JOINER_BYTES_PER_S_MIN = 128 << 10
"""Bytes that joiners get together even of a slow uplink, or of one whose rate is not known yet; in
an op half of it at most: of 1 Mbit/s this would be more than there is."""

PIECE_TURN_S = 10.0
"""While a donor's uplink is thin, or not known yet, a joiner's piece keeps the others' waiting for
so long at most: 128 KiB at 0.1 Mbit/s. Who takes nothing costs the others one such turn."""

JOINER_HEADROOM = 1.25
"""Between ops a donor gives so many times its measured rate, so that the measure can rise; what
waits in its sockets when an op begins is then short."""

JOINER_QUEUE = 2 * PIECE_WINDOW_MAX
"""Requests of one joiner that a donor remembers; it asks again for what is dropped."""

FIRST_STATE_S = 60.0
FIRST_STATE_BYTES_PER_S = 125_000
STATE_VALUE_BYTES = 8
FIRST_STATE_DOUBLINGS = 6
"""A peer to which nothing of the first state comes for so long does not get it; nor does one that
needs longer, beside that, than a link of 1 Mbit/s for weights and momentum in float32. Each giver
that is passed over doubles these times, up to an hour for a model of any size."""

OFFER_WAIT_S = 10.0
"""Time for others to offer a first state, where all who have offered one were passed over."""

SNAPSHOTS_LEASED = 1
"""Snapshots beyond the two newest that stay pinned while joiners ask for them."""

SNAPSHOT_LEASE_S = 30.0
"""A snapshot that nobody has asked for in this time is not kept for anybody."""

STAGES_MAX = 256
"""Stages of a pipeline: more than any model has blocks that are worth a hop each."""

HOP_BYTES_MAX = 512
"""Largest message between two peers of a pipeline, without its payload: the longest legal one has
less than 400."""

SECRET_BYTES = 16
"""Size of a micro-batch's secret: nobody guesses one."""

SHAPE_DIMS_MAX = 8
CODEC_CHARS_MAX = 16
"""Bounds of a payload's form as a stranger tells it; a stage takes one form only."""

HOP_WANTS_MAX = 4096
"""Micro-batches that a peer says that it has for a stage: it holds fewer than that."""

HOP_TICK_S = 3.0
"""Pause after which whatever may have been lost between two peers of a pipeline is said again."""

HOP_RESEND_MAX_S = 48.0
"""Longest pause before a payload is sent again; it doubles from HOP_TICK_S on. A payload that takes
a thin link ten seconds is then sent twice or three times, not without end."""

HOP_SILENCE_S = 8.0
"""A receiver that has said nothing about a micro-batch for so long, more than two ticks, is taken
for lost. Its age says nothing: a slow peer is not a dead one."""

WINDOW_TIMES = 2.0
"""Micro-batches under way by the bandwidth-delay product of their way: one full way, and as much in
line where times vary."""

SLOTS_TIMES = 4
SLOTS_BYTES = 64 << 20
"""Slots of a peer by the least number that it has, and bytes of those beyond: more take memory that
few models in stages leave."""

OWN_SPREAD = 2
"""Own micro-batches of a source that makes more of a round than the average one, at a time, by that
one's: as many more, up to so many times."""

NORM_SQUARE_MAX = 2.0**40
"""Squared norm of a gradient that may be stepped with or sent: a norm of a million. A run that is
well has one below a thousand, and float32 sums of such squares are far from infinity."""

NORM_MAX = 2.0**20
"""The norm of such a gradient."""

NORM_SPREAD = 8.0
"""A stage's part of the gradient's norm, as members tell it, counts up to this multiple of what its
number of values says, and down to the same part: a member that is alone in its stage cannot hold up
the others' steps by a word."""

BUSY_S_MAX = 1e9
"""Seconds of passes in a round that a peer may tell of: finite, and more than anybody needs."""

HOLDERS = 3
"""Living holders of each stage's newest state: any two may be lost at once."""

INVITED_S = 120.0
"""A slot that its sender has not filled by then is for others; a filled one, if all are taken and
another sender has none. The largest payload takes 70 s at 1 Mbit/s."""

HOP_TRIES = 3
"""Receivers that one sender tries for one micro-batch."""

ARRIVED_S = 45.0
"""An end that its source has not answered by then gives the micro-batch back, and its slot."""

OUTRUN_S = 60.0
"""Time that a sender waits for the gradient of an earlier try when another end has begun."""

MICRO_BATCH_S = 400.0
"""Age at which a source gives up one of its micro-batches at last: its place is for another."""

MICRO_BATCH_LEAST_S = 120.0
MICRO_BATCH_TIMES = 20.0
MICRO_BATCHES_KNOWN = 8
"""A source that has had so many back gives up one that has been with others for so many times as
long as the middle one of the newest, and for so many seconds: peers that exchange a stage answer
later, and one that is sixteen times slower is not lost."""

HELD_LONG_S = 20.0
HELD_LONG = 8.0
"""A receiver that has had a micro-batch for so long, and so many times as long as the middle peer
needs for one, gets no other while there are others: it may never send it back."""

KEPT_ARRAYS_MAX = 8
"""Arrays of a group's length that its state may consist of, for who keeps it and has no model to
compare it with: weights and the outer optimizer's moments are two to four."""

KEPT_SNAPSHOTS_BYTES = 36
"""Bytes per value that a keeper's snapshots are reckoned to take: two and one that comes, each of
three arrays."""

AWAY_CLOSED_S = 2.0
"""A member of a pipeline whose control connection is closed for so long, or that is silent for
HOP_SILENCE_S, is away: the others go on without it. As in SUSPECT_CLOSED_S a try to connect fits
into this time, and whoever is back goes on where it was."""

KEPT_CHECK_BYTES = 8 << 20
"""Bytes of what an earlier life has kept that are hashed at a time: 10 ms, in which nothing else is
answered."""

HOLD_S = 600.0
"""A keeper that has not taken a stage's newest state by then is replaced, and a member that has not
is not waited for: 75 MB at 1 Mbit/s."""

STAGE_EMPTY_S = 10.0
"""For so long a stage without a peer waits for one that joins or comes back, before it gets one of
another stage: that one has to fetch the state first."""

ANSWER_S = 120.0
"""A member of a pipeline that is asked what it has counted, or how large its gradient is, has one
pass to end and one step to make. A peer that needs longer for a pass is too slow for a pipeline."""

STRAGGLER = 3.0
"""A source that needs so many times what the middle one of the others has needed is not waited for;
but for two times MICRO_BATCH_S in any case, or MICRO_BATCH_LEAST_S where most have drained. Their
shares are such that all are done together."""

VOIDS_MAX = 8
VOIDS_ALONE = 3
"""Attempts at a flushed step, after which its round ends with the steps that were made; and those
in which one source alone has lost something, after which it makes no more in the round."""

MOVE_ROUNDS = 3
"""Rounds in a row in which a stage must be slow enough, before a peer moves there: a slow round is
no slow stage."""

MOVE_S = 3600.0
"""Time of a peer to count in the stage that it has moved to: it fetches half a gigabyte at 1 Mbit/s
first. Nobody else moves meanwhile."""

PIPELINE_MEMBERS_MAX = 1024
"""Peers of a pipeline: BEGIN names all of them to each, which is 100 KiB a peer and round."""

PARKED_S = MICRO_BATCH_S + 60.0
"""Age at which a receiver lets go of a micro-batch: its source has given it up, and whoever sent it
has had a minute to take it back. A sender that has not may be parking it, and waits as long for a
slot."""

ORDERS_UNHEARD_MAX = 1024
"""Orders about a pipeline that a process has not said that it has heard: it is then out. It says so
with every report, once a round at least, and a round has about ten."""

BOOTS_LEFT_MAX = 4
"""Processes of one peer, the newest ones, that are told that they have left when they come back.
One that was forgotten would be taken for new and hear orders under numbers that it has had."""

JUDGED_UNDER_WAY = 2
"""Micro-batches of validation text that an evaluator has on their way, beside those of training:
they take each stage about as many passes of its time as these do."""

JUDGED_S = 60.0
"""A micro-batch of validation text that nothing is heard of for so long is lost."""

JUDGED_PAUSE_MAX_S = JUDGED_S / 2
"""Longest pause before validation text is sent again; it doubles from HOP_TICK_S on. So a hop has a
minute and a half to have the state in place."""

JUDGED_TRIES = 6
"""Micro-batches of validation text that may be lost, one after another, before an evaluation is
given up."""

LOSS_MAX = 2.0**40
"""Sum of a micro-batch's losses, as the end of a route tells it: a micro-batch has fewer than 2^23
tokens, and a model that learns loses less than 20 on each."""

FRAME_BYTES_MAX = 8 << 20
"""Largest body on the data lane: a float32 chunk is 1 MiB, a result manifest of 200 000 hashes
6.4 MiB."""

MARKS_BYTES_MAX = 64 << 10
"""Bits of all that a peer has made and counted in a round, by source and stage: half a million
micro-batches. As numbers they take the coordinator a hundred times the memory for a moment."""

COUNTED_MAX = 8192
"""Entries of a report of what was counted: 32 sources times STAGES_MAX, more than a peer serves."""

SEEN_MAX = 1024
SEEN_BYTES_MAX = 32 << 10
"""Entries, and bytes of numbers, of what a peer says of those that it had to do with: one for each
source and neighbour. Any more are left out: they decide disputes alone."""

TURN_PLANES_MAX = 64
"""Planes in which a subspace is turned at once: the steepest ones, in half a kilobyte of BOOKS."""

TURNS_MAX = 256
"""Turns of a run's subspace; then it stays. Each anchor is taken through all of them and back."""

BOOKS_MEMBERS_MAX = 128
BOOKS_COUNTS_MAX = 2048
BOOKS_BREAKS_MAX = 32
"""Members, their counts by stage, and breaks that BOOKS tells of one by one: 20 KiB a round. The
sums are of all."""

REPORT_BYTES_MAX = 5 << 18
"""Largest report about a pipeline: COUNTED_MAX entries and MARKS_BYTES_MAX, SEEN_MAX and
SEEN_BYTES_MAX."""

MARKS_GAP = 128
"""Numbers of micro-batches that lie further apart are told apart: a source may draw its numbers as
it likes, and none of them takes whoever has counted it more than so many bits."""

HOP_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - HOP_BYTES_MAX
"""Largest input or gradient of a micro-batch: it goes in one frame, so that nothing need be put
together again. 8 sequences of 1 024 tokens of 1 000 int8 values are as large."""

CONTROL_BYTES_MAX = 4 << 20
"""Largest control message: a batch of ledger records or the hashes of one large slice."""

WORD_BYTES_MAX = 4 << 10
"""Largest message of a peer that says a number, a hash or a sentence."""

KNOCK_BYTES_MAX = 16 << 10
"""A stranger's only message: HELLO with the states of 64 groups is half as large."""

LISTING_BYTES_MAX = 16 << 10
"""A list with an entry for each of CELL_PEERS_MAX peers or slices, or the sizes of FRAGMENTS_MAX
fragments."""

GOT_BYTES_MAX = 64 << 10
"""GOT of 64 contributors, each with its root and its row of inner products, is 40 KiB."""

LEASES_BYTES_MAX = 1 << 20
"""Two leases of 4 096 pieces that a peer holds, and as many that it has read, at 38 bytes."""

VALUES_MAX = 1 << 17
"""Values of a message, containers and their contents: as many as CONTROL_BYTES_MAX holds hashes. As
empty lists, the dearest, they take 8 MiB and 40 ms."""

VALUE_COST_BYTES = 32
"""A value costs as much time to decode as so many bytes to move."""

NESTING_MAX = 32
"""Levels of a message; the deepest has eight."""

UNCOUNTED_BYTES = 1024
"""A message up to here is decoded uncounted: it can take 60 KB, and 3 MB in lists that it claims
and does not have."""

RECORDS_BATCH_BYTES = 256 << 10
"""A joiner's ledger is sent in batches of this many bytes. A peer acknowledges half of one at once,
and what is less with its next PROGRESS."""

RECORDS_WINDOW_BYTES = 4 << 20
"""Bytes of records that one peer is sent beyond what it has acknowledged: 160 Mbit/s at 200 ms. An
op of 64 peers has a fraction of it, so whoever is up to date hears every decision at once."""

SNAPSHOT_EVERY_BYTES = 1 << 20
"""A SNAPSHOT follows so many bytes of records: with its image, about as large, that is what a
newcomer reads before it takes part."""

IMAGE_BYTES_MAX = 64 << 20
"""Largest image of a fold that a newcomer takes: dozens of times that of 64 peers."""

IMAGE_VALUES_MAX = 1 << 22
"""Values of an image: those of 200 000 peers. As empty lists they take 270 MB."""

HISTORY_HOLDERS = 3
"""Number of other peers that must hold all records before one may do without the older ones."""

HISTORY_ASK_S = 60.0
"""Seconds between two questions to a peer that says that it holds all records."""

LEDGER_DISK_BYTES = 256 << 20
"""Size of the records before its newest SNAPSHOT from which on a peer may free them all."""

LEDGER_MEMORY_BYTES = 2 << 20
"""Newest records in memory, where older ones can be read from a disk."""

CURVE_KEYS_MAX = 8
"""CURVE keys that one peer may come with in a run. Its identity has one; each stays in the fold."""

CELL_PEERS_MAX = 64
"""Peers that exchange directly with each other, as each of them needs a way to each other one
(protocol.md rule 8)."""

RUN_PEERS_MAX = 4096
"""Peers of a run at a time. The exact window spans 18 powers of two then (protocol.md rule 1)."""

CELLS_MAX = RUN_PEERS_MAX // CELL_PEERS_MAX
"""Cells of an op: as many as a full run has."""

CELLS_PLANNED = 8
"""Cells that a coordinator plans at most; of more peers than fit into them all take turns.
The coordinator keeps account of which member has which slice, and that grows by the square."""

SHEET_BYTES_MAX = 64 << 10
"""Largest sheet of a cell: roots and signatures of CELL_PEERS_MAX contributors are 7 KiB, the
signatures of its slices 4 KiB."""

SUM_VALUES_MAX = FRAME_BYTES_MAX // 16
"""Values in one chunk of a mean that is summed in cells: a float64 each take half a frame."""

ADDRESSES_KEPT = 2 * RUN_PEERS_MAX
"""Addresses of which it is remembered what kind they are: those at which a full run listens, and
those that it comes from."""

FRAGMENTS_MAX = 1024
"""Parts of the vector that ops move in turn; more than layers that anybody trains here."""

NAME_CHARS_MAX = 64
"""Names chosen by peers are hostile input; they are shown, so they are short."""

CREDIT_WINDOW_BYTES = 4 << 20
"""Bytes that one contributor may have under way to one owner: 1 s at 32 Mbit/s."""

UNINVITED_BYTES = 8 << 20
EARLY_BYTES = 2 * UNINVITED_BYTES
EARLY_FRAME_BYTES = 4096
EARLY_S = 10.0
"""Bytes that all contributors together may send an owner before it has invited them, and bytes that
a peer keeps of parts that come before their PLAN, for so long, each frame with its own weight. At
100 Mbit/s 8 MiB are 0.7 s, far more than two peers' copies of a PLAN are apart."""

AUDIT_OPS_KEPT = 4
"""Ops of which a contributor keeps its drawn chunk, and a member an accusation."""

PROOF_BYTES_MAX = (CELL_PEERS_MAX + CELLS_MAX) * FRAME_BYTES_MAX
"""A proof on the disk: what each contributor has shown came in a frame of its own, and each cell's
sum. With chunks of 256 Ki values and 64 peers it has 17 MiB."""

AUDIT_ASKS_MAX = 4
"""Times that a contributor is asked for its chunk, and that it shows it: frames get lost."""

AUDIT_RETRY_S = 2.0
"""A contributor may not have read COMMIT yet; then it says nothing, and is asked again."""

AUDIT_PAUSE_S = 1.0
"""While an op is under way an auditor asks for one chunk in so many seconds: 2 Mbit/s."""

ENCODE_AHEAD_CHUNKS = 64
"""Chunks that a contributor encodes per NUDGE_S although no owner has invited them: an owner that
is dead must not keep it from signing what it gives. 64 take less than 0.1 s."""

PUMP_CHUNKS = 8
"""Chunks that are encoded before the loop gets a turn: the link is busy after 2 ms of work, not
after a whole vector's."""

OWN_AT_ONCE = 2
"""Chunks of an owner's own part before the others are invited: half a millisecond."""

GATHER_PUSH_BYTES = 16 << 20
"""Bytes of its own contribution to a gather op that a peer pushes to each of the others. They wait
in memory until they are sent; what is beyond is asked for by hash, from whoever has it by then."""

AHEAD_BYTES = 4 << 20
"""Bytes for the next op's partner that the link holds at once: they have until the inner steps are
done, and nothing else should wait behind them."""

AHEAD_PAUSE_S = 0.1
"""Pause between two looks whether more of that may go."""

FETCH_WINDOW = 4
FETCH_WINDOW_MAX = 64
"""Requests under way to one holder, at first and at most: 256 KiB each hide a round trip of 80 ms
at 100 Mbit/s, and of 130 ms at 1 Gbit/s."""

FETCH_TIMEOUT_S = 5.0
"""A holder from whom nothing came for this long is passed over for another. While answers of it
come, its other requests only wait in line."""

FIRST_ASK_S = 1.0
"""A holder of whom nothing was ever heard may be dead and not yet out of the roster. After so long
its request goes to one other holder, too: a link is made and a small answer here in that time."""

RESULT_VALUE_BYTES = 8
"""No codec's result takes more per value; a pushed chunk is held to it before its hash is known."""

PUSH_QUIET_S = 1.0
"""Result chunks that an owner pushes are waited for while anything of their op still comes, and
for so long after it; then they are asked for."""

FETCH_RETRY_S = 0.25
"""Pause after every known holder has said that it lacks a chunk."""

LOST_ROUNDS = 8
"""Times that every holder lacked a result, for two seconds or more: then a later state is taken."""

HEALS_MAX = 3
"""Times in a row that a peer takes over the run's state because its own differs; after that it
computes otherwise than the others, and no download helps."""

NUDGE_S = 1.0
"""An owner repeats its RANGES to a silent contributor this often; it also heals lost frames."""

PROGRESS_S = 2.0
"""Application heartbeat: it proves that the machine runs, which a socket heartbeat does not."""

PROGRESS_PEERS = 1024
PROGRESS_MAX_S = 10.0
"""Peers that say PROGRESS every PROGRESS_S. Of more each that is in no op says it as much more
rarely, so that the coordinator hears five hundred a second; but three times in EVICT_S."""

SUSPECT_PROGRESS = 3
SUSPECT_S = SUSPECT_PROGRESS * PROGRESS_S
"""Three missed heartbeats: excluded or relieved of its slice, not evicted."""

TWIN_S = 3.0
"""A process was heard so lately, and its connection stands: who comes with its key meanwhile, as
another process, is a second one. PROGRESS comes every 2 s; one that is started anew takes as long,
and the end of the old one closes its connection."""

SUSPECT_CLOSED_S = 2.0
"""A closed control connection is stronger evidence than silence, but a router may only have
blinked: one reconnect attempt fits into this time."""

IDLE_S = 5.0
IDLE_CHUNKS = 3
"""A peer that owes parts, but has moved no byte for so long, or in the time of so many chunks at
its rate, is suspected although it speaks."""

WITNESS_S = 1.5 * PROGRESS_S
"""Somebody heard of within this time was well then."""

UNREACHED_S = 12.0
"""A peer is told to be unreachable when no connection to it could be made for so long: a try takes
up to HANDSHAKE_S where a machine is busy."""

MEET_FIRST_S = 2.5
"""For a dial from one side where nothing stands yet: twice what a lost SYN costs. Where a slower
one would do, it is tried again beside the way that was found."""

MEET_SLACK_S = 2.0
"""The coordinator waits so much longer: its words have to reach both, and theirs it."""

MEET_AT_ONCE = 16
"""Meetings of one peer that are under way: each is a socket that dials."""

MEET_PLACES = 3
"""Addresses of one peer that are tried in one way; the best ones come first."""

MEET_DIALS = 4 * CELL_PEERS_MAX
MEET_DIALS_PER_S = 1.0
"""Times that one peer can make others dial, at once and for long: as many as meet everybody of a
full cell by two addresses."""

MEET_AGAIN_S = 30.0
MEET_AGAIN_MAX_S = 1800.0
"""Pause before ways that failed are tried again, doubling: two behind routers that let nobody
through would else dial each other for ever."""

MEET_LOST_S = 60.0
"""Longest pause where nothing stands: whoever is reached by no way takes no part."""

MEET_VOID_KEPT = 1024
"""Tokens given up lately: what was said of them meanwhile counts for nothing."""

MEET_STOOD_S = 5.0
"""A way that stood for so long was good, and is tried first once it is lost. One that is lost
earlier counts as one that failed."""

MEET_ALL_MAX = 2 * CELL_PEERS_MAX
"""Peers up to which everybody meets everybody before anybody needs it: 16 thousand pairs."""

CELL_SAY_S = 0.1
"""In an op in cells GOT, HAVE and HASHES of its hundreds of slices are said together, so long after
the first of them at most; the last ones at once, as others wait for them."""

CELL_HASHES_S = 1.0
"""HASHES of a result that is pushed go to those members of an op in cells that have not said within
this time that they hold just that."""

CELL_HASHES_AT_ONCE = 1 << 15
"""Hashes that one message of several slices has: 1 MiB."""

CROWD_PEERS = 2 * CELL_PEERS_MAX
"""Peers above which a run is a crowd: what concerns all of them is looked at and told at intervals,
and not at every message."""

CROWD_LOOK_S = 0.25
"""Interval at which a coordinator looks in a crowd if a state is agreed upon, or an op may begin:
an op of a crowd takes many times as long."""

CROWD_LOOK_PEERS = 2048
"""Peers of a crowd beyond which the intervals of looks at all of them grow with them: a look takes
5 to 10 us for each peer, so each kind of them takes 2 to 5 % of it, however many they are."""

CROWD_DECIDE_S = 0.05
"""Interval at which it looks what follows from an op's reports: the 64 members of one say 8 192
things within seconds, and each look at all that they have said takes 0.2 ms."""

CROWD_JOIN_S = 0.2
"""Interval at which newcomers are let in: their JOINs are synced to the disk together. Each by
itself would stop the coordinator for 4 to 20 ms, at 50 a second for a fifth of its time."""

CROWD_REACH_S = 1.0
"""Interval at which it looks who is reached by nobody: they say so after 12 s."""

CROWD_RECORDS_S = 2.0
"""Pause between records for a peer of a crowd whom they do not concern: where 50 come each second,
they come 100 at a time."""

MEET_DIALLERS_KEPT = 4 * RUN_PEERS_MAX
"""Peers whose spent dials are remembered, gone ones too."""

RELAYS_MAX = CELL_PEERS_MAX
"""Processes that do nothing but relay: one for each peer of a full cell."""

RELAY_BELIEVED = 4
RELAY_UNSEEN_BYTES_PER_S = 1_250_000
"""A relay's word on its rate counts up to so many times of what it was seen to carry, or for a line
of 10 Mbit/s: a boast must not draw everybody."""

RELAY_WINDOW_S = 2.0
"""Its rate is taken over as much, the interval of PROGRESS."""

RELAY_COMPLAINT_S = 600.0
"""For so long each sender that has lost its way over a relay halves what the relay is reckoned to
carry."""

EVICT_S = 30.0
"""Silence after which a peer leaves the roster; it may come back with the same key."""

ABSENT_S = 1.0
"""A coordinator that wakes so much later than it wanted was stopped (a closed lid, a busy disk):
its own absence is not held against the peers, whose messages wait to be read."""

LOOK_S = 0.5
"""Interval at which a coordinator looks at the clock though nothing falls due: a stop during a long
wait is noticed as one that hid a deadline is, before what it missed passes for silence."""

LEDGER_WAIT_S = 25.0
"""Wait for a longer copy of a lost ledger: peers knock every 15 s, connect in 10."""

FINISH_S = 30.0
"""After the last commit peers are kept for so long if somebody still needs results of theirs."""

LINGER_S = 600.0
"""Wait of a finished run for peers that are behind: 75 million values in int8 at 1 Mbit/s."""

LINGER_LATE_S = 1800.0
"""Default of `up --linger`: so long after it was last here a finished run waits for a member that
went without a word, as a laptop does that is closed."""

STAYING = 2
"""Holders of the last state that stay for such a member: one may be closed meanwhile, too."""

HAND_OVER_S = 30.0
"""Longest wait of a leaving peer until somebody else holds what it alone holds."""

LAST_LOSS_S = 3.0
"""Wait for the last loss, to be told with FINISHED: it is measured after APPLIED."""

LAST_LOSS_OF_STAGES_S = 30.0
"""Wait for it where stages are evaluated over routes, which takes many passes."""

WEIGHT_MAX = 255
"""Integer weights up to 8 bits leave 24 bits of scale spread at 64 peers."""

EXACT_BITS = 53
"""Bits of a float64 significand: the exact window must fit into it (protocol.md rule 1)."""

PRODUCT_BITS = 15
"""7 bits of an int8 magnitude and 8 bits of a bfloat16 significand."""

E_MIN_FLOOR = -90
"""Lowest scale exponent: products and sums stay far above float32's subnormals."""

E_MAX_CEILING = 100
"""Highest scale exponent: a mean and its outer step stay far below float32's infinity."""

STALE_MAX = 48
"""Results that may have come since work began that an op takes; the ledger remembers 64."""

TOLD_LOSS_MAX = 1e9
"""Largest mean loss that a peer is believed to have seen; one that is no number counts as this. A
model that draws at random among 2^32 values loses 22."""

RESULT_KEEP_OPS = 16
"""Results of this many ops stay in memory for joiners and for peers that fell behind."""

RETAIN_MEMORY_BYTES = 32 << 20
"""Parts of an op and results of past ones that a peer keeps in memory; the rest goes to a file. The
results of 16 ops of 2 M values fit, so nothing is written for smaller models; of a stage of 20 M
values it is the memory of two fifths of a float32 vector."""

LATE_WINDOW_S = 3600
LATE_SHARE = 0.1
LATE_LEAST_S = 20.0
"""A peer for whom the others have waited in the last hour for more than a tenth of its time is not
waited for in the next rounds. A run that has just begun has loaded and compiled, too: 20 s are
nobody's fault."""

LATE_GRACE = 0.5
LATE_GRACE_S = 0.1
"""It is given half as much time again as the others have needed for their contributions, so that
one that is as fast as they are is in, even if it is the last."""

VOICES = 8
"""Owners whose words leave a contributor out, however many there are: one that is merely slow is
missing at most of 64 owners at once, and must not cost as many slices."""

FAULT_POINTS = 4
BARRED_POINTS = 12
PROBATION_POINTS = 8
"""A fault weighs four, an op that went well takes one off, and twelve bar: three faults in a row,
and sooner or later whoever is at fault more often than once in five. When the bar is lifted eight
points stay, so that the next fault bars at once."""

BARRED_ROUNDS_MAX = 64
"""For so long at most: 1, 2, 4 and so on, begun anew once nothing is left of the points. A peer
that always wastes a round until its deadline then does so in one of 65."""

VAIN_OPS = 3
VAIN_PAUSE_S = 1.0
VAIN_PAUSE_MAX_S = 32.0
"""After so many SKIPs for want of somebody an op that would need the same again is put off for
1, 2, 4 ... 32 s: each costs everybody messages and the coordinator's disk several writes, and who
is slow to be ready in their place gets the time for it."""

AGAIN_WAITS = 2
"""Times as long as for READY it is waited for somebody in the place of those who are barred."""

ODDS_ROUNDS = 8
"""Two peers of which one has said for a second time that the other's part has not come are kept
apart for so many rounds, then twice as many, up to BARRED_ROUNDS_MAX."""

WORD_ROUNDS = 24
"""Rounds for which a word counts against a contributor of which several owners say the same. Where
three do (five peers), it has cost one round in eight a wait until its deadline."""

ODDS_KEPT = CELL_PEERS_MAX * CELL_PEERS_MAX
"""Pairs at odds that are remembered: everybody of a full cell with everybody of it."""

ATTEMPTS_MAX = 16
"""Owners tried for one slice before the op is skipped."""

D_SCATTER = 0.5
D_REPAIR = 0.2
D_GATHER = 0.9
"""Fractions of the op's deadline D_op (protocol.md, TIMERS)."""

DEADLINE_EXTENSION_MAX = 2.0
"""A death may extend D_op, in total to at most this multiple."""

DEADLINE_FACTOR = 2.5
"""Either half of an op may take this multiple of what it took lately, between floor and cap."""

ARRIVED_SHARE = 0.75
"""Share of the peers whose needs set an op's time; the slowest quarter, which may hold the dead and
the hostile, does not set the pace."""

RATE_WINDOW_S = 0.2
RATE_WINDOW_BYTES = 1 << 20
"""Rates are taken over windows of at least this: shorter ones show the bursts of shapers, and what
TCP held back until a lost packet came again; longer ones dilute an exchange with waiting."""

RATE_WINDOWS_MIN = 2
"""An exchange of one window says nothing of a link's rate: its round trips are in it."""

RATE_FASTEST = 0.25
"""The share of an exchange's bytes whose pace counts as the link's: while they moved, the link and
not the waiting for a slower peer was the limit."""

RATE_KEEP_OPS = 8
"""For so many exchanges a rate is believed that was not reached again: an owner whom slower peers
hold up must not lose its slice for that, and a link that got slower is noticed after as many."""

OUT_WINDOW_S = 0.5
OUT_WINDOW_BYTES = 512 << 10
OUT_WINDOW_BYTES_MAX = 256 << 20
"""Bulk handed to the system and not acknowledged yet: what the link carries in this time, at least
two chunks of int8, so that no queue on the way runs dry; more while the link is not filled."""

OUT_LINE_BYTES = 512 << 10
"""Share of that to one peer, at least two chunks: one leaves while the next is handed over."""

OUT_HOPS = 3
"""Bytes between stages of a model for each byte of an exchange, while both wait for the link: a
stage without work wastes its peers' time, and an op's deadline follows what moves."""

OUT_STUCK_S = 1.0
"""Bytes that a connection has taken and not moved for so long are not waited for: a link of
1 Mbit/s moves 128 KiB in this time, a connection that was refused and made anew moves nothing."""

OUT_LOOK_S = 0.02
"""Pause between two looks at a queue before the link: 64 KiB at 25 Mbit/s, a hundredth of what a
window holds."""

OUT_LOOKS_LOST = 10
"""Times as long a pause while no peer that something waits for has a connection."""

OUT_BUSY = 0.8
"""From this share of its known rate on a link is taken to be filled."""

OUT_PACE_ROOM = 1.1
OUT_PACE_LOOKS = 3
OUT_PACE_KEEP = 0.97
"""Flows that share our link are paced to so much more than it is known to carry, or than they have
carried in so many looks in a row at best, as it may carry more. The best falls to this at each
look: what stood still for a moment, or came in a burst, says little of a way."""

OUT_PACE_GROWTH = 4
OUT_PACE_LEAST = 0.5
"""A flow with a slow receiver is paced to so many times what it has moved at best, and to so much
of an even share at least: it may have just begun."""

OUT_PACE_STEP = 0.1
"""A pace that differs by less from the one before is left as it is."""

FLOWS_MAX = 16
"""TCP flows for what is large to one peer: at 100 ms and 1 % of packets lost one that takes a loss
for a full link carries 1.4 Mbit/s."""

FLOW_FRAME_BYTES = 16 << 10
"""Bodies from here on may take any of them; smaller frames keep to the first, and their order."""

FLOW_RTT_MIN_S = 0.02
"""On shorter ways one flow recovers quickly from a loss, and fills any link."""

FLOW_QUEUED = 1.25
FLOW_JITTER_S = 0.01
"""A round trip longer than the shortest one by this is one with a queue on the way: the link is
full, and another flow would only take from the others."""

FLOW_LIMITED = 0.3
FLOW_LOOKS_MIN = 5
"""The share of looks, and the least number of them, that make a flow the limit of an exchange. It
is asked every RATE_WINDOW_S / 2, so an exchange of less than half a second changes nothing."""

FLOW_GAIN = 1.1
FLOW_TRIES = 3
"""Twice as many flows that are not faster by this are the last ones, if so many exchanges tell it
of them and of half as many."""

CAP_BURST_S = 0.1
CAP_PAUSE_S = 0.01
"""A cap lets through at once what it allows in this time, and is looked at no oftener than this."""

CAPPED_QUEUE_FRAMES = 2
CAPPED_RECEIVE_BYTES = 128 << 10
"""Bytes that libzmq and the system take in of one connection before a capped peer reads it: its
sender's TCP then keeps to the cap. With a queue of one frame libzmq 4.3.5 hands out none
(measured)."""

RESLICE_GAIN = 1.15
"""Slices are cut anew when the op would otherwise take so much longer: less is the rates' noise."""

EQUAL_GAIN = 1.05
"""Slices are equal again when unequal ones would gain no more than this."""

SAMPLES_SPREAD = 4
"""A peer's own word on what it has trained on counts up to this multiple of the low median of all
contributors, in weights and in the schedule: fast machines among slow ones count for what they do,
and one that boasts is worth four peers of the middle, never the whole mean."""

PACE_SPREAD = 16.0
"""A peer's own word on its speed counts up to this multiple of the median: a boast makes the middle
peer's round no shorter than a sixteenth."""

RATE_SPREAD = 100.0
"""A peer's own word on its rate counts up to this multiple of the median: enough for a fibre line
among modems, and no single boast takes the whole vector."""

PACE_KEEP = 0.7
"""Weight of the past in the moving average: a change of the network counts after two or three
ops."""

PACE_RELIEF = 1.5
"""After an op that ran out of time the next one gets so much more."""

LINK_SEND_QUEUE_FRAMES = 1024
"""Frames waiting for one peer. Credits keep the bytes far lower; this bounds an unreachable one."""

LINK_RECEIVE_QUEUE_FRAMES = 16
"""Frames of one peer between the socket and the machine: a hostile member can make us hold
16 x 8 MiB, then TCP holds it back."""

LINK_UNREAD_BYTES_MAX = 160 << 20
LINK_UNREAD_BYTES_ALL = 1 << 30
"""libzmq counts messages, not the parts of one that does not end. So a connection that took in more
than the queue above holds without a message being read from it is broken; with many connections
each may hold its share of what all may, but always one frame."""

LINK_HOLD_BYTES = 512 << 10
"""Bytes of one connection that wait between our proxy and libzmq: two chunks of int8."""

LINK_UNHEARD_MAX = 2 * CELL_PEERS_MAX
"""Connections from which no message was read yet: every peer makes one, and one more as it comes
back. Beyond, the oldest goes; each costs three descriptors."""

LINK_CONNECTIONS_MAX = 4 * FLOWS_MAX
"""Connections of one key: four times as many as a peer's large frames go by, since dead ones end
late."""

LINK_HEARD_MAX = 16 * CELL_PEERS_MAX
"""Connections of all members that are heard by: those with whom one exchanges, by all flows that
each may have, or of a run of thousands whoever has spoken last."""

LINK_IDLE_S = 60.0
"""A connection that nothing was sent by for so long is closed: rounds of a minute keep theirs, and
where they take longer a handshake before each costs nothing beside them."""

LINK_LINGER_S = 1.0
"""A connection that is closed by ourselves first sends what was queued, for so long at most."""

LINK_WAYS_MAX = 4 * CELL_PEERS_MAX
"""Peers to which there are connections at once: those of an op, and those of the three before that
are not idle yet, or ask for a state. Each costs four descriptors."""

LINK_LOOK_S = 0.5
LINK_ANSWER_WINDOW_BYTES = 1024
LINK_ANSWER_BYTES_MAX = 64 << 10
"""A connection that we send by takes nothing in but 0.5 KiB of handshake. It is looked at so often,
and broken if a message came, or so many bytes of none. Until then TCP's window holds back whoever
talks: a message without an end comes at 1 MB/s over loopback (measured)."""

FRAME_SLACK_BYTES = 4096
"""Bytes that encryption and framing add to a body, so that a body of exactly the limit passes."""

ZERO_COPY_BYTES = 64 << 10
"""Bodies from here on are queued without a copy: a queue to a slow peer then costs no memory,
because the sender keeps its parts until COMMIT anyway. Below, a copy is cheaper."""

RECONNECT_MIN_S = 0.1
RECONNECT_MAX_S = 10.0
"""Pauses between attempts to reach a peer's port, doubling."""

REFUSED_RETRY_MAX_S = 2.0
"""Longest pause before a peer that refused our key is tried again: it may have learnt of us."""

HANDSHAKE_S = 10.0
"""A connection that has not proved its key by then is closed."""

PREAMBLE_S = 5.0
"""A connection whose first bytes have not come by then is closed."""

MEET_S = 5.0
"""Time for one try of one way between two peers: a connection that is not there by then is of no
use, and there is another way to try."""

PLACES_MAX = 8
"""Addresses that a peer tells."""

RELAY_NEAR_BYTES = 128 << 10
"""That a relay takes in ahead by a connection that is near; the system doubles it."""

MEETINGS_MAX = 4 * CELL_PEERS_MAX
"""Meetings that a peer has under way at once: two directions with everybody, and one more try."""

DIAL_AGAIN_S = 0.1
"""Pause between two dials of one try that was refused: where two dial each other the first SYN
that comes too early is refused, or dropped."""

NEAR_RTT_S = 0.005
"""A round trip below this is within a house or a town."""

FAR_BYTES = 64 << 10
"""Bytes that a connection has moved before its shortest round trip passes for a far path's."""

LINK_KEEPALIVE_S = 1.0
LINK_SILENCE_S = 3.0
"""TCP's own probes: they find dead paths and stopped machines, not stuck programs. The time begins
with what is sent again, so no queue on the way makes it pass. What is lost goes again (outbox)."""

LINK_RETRIES = 3
"""Times in a row that TCP has sent the same bytes without an answer before something else is tried:
1.5 s over short paths. Where one packet of 50 is lost that comes by chance once in hours."""

UNKNOWN_HANDSHAKES_PER_S = 10
"""Refused keys reported in one second; more are only counted, so a flood cannot fill the log."""

GAUGE_WORDS = 8
"""Words of one owner on one contributor that are kept: their median outlives a bad round or two."""

GAUGE_ROUNDS = 64
"""An owner that has said nothing for so many rounds is not quoted any more."""

ROUTE_NEWEST = 0.1
"""Weight of the newest pass in a peer's average: ten passes make up two thirds of it. SWARM's."""

ROUTE_SPREAD = 16.0
"""A peer counts as so many times faster or slower than the middle one at most: one measurement of
nearly nothing draws no more than that, and nobody is so slow that it is never measured again."""

ROUTE_ROUNDS_NEW = 3
ROUTE_SHARE_NEW = 2
"""Until its speed was measured in so many rounds, a peer gets at most so many equal shares of a
sender's micro-batches in a round: sending nonsense fast pays late, and only twice."""

REPEAT_EVERY = 100
"""Micro-batches of a source of which it makes one of the text of the one before, to compare."""

TWINS_COSINE = 0.25
TWINS_RATIO = 6.0
"""Least cosine, and largest ratio of norms, of two gradients of the same text. Of 762 pairs of
honest peers (sweep model, 3 stages of 2 or 3 peers, free steps, rounds of 50 from the first on)
half had a cosine above 0.95, two one below 0.25, and none a ratio above 3.2. Unrelated gradients
have a cosine of 0 give or take 0.06 in a sketch of 256 places."""

TWINS_KEPT = 64
TWINS_ROUNDS = 64
"""Comparisons that a source remembers, and for how many rounds."""

TWINS_ODD = 3
TWINS_ERRORS = 3.0
"""A peer is suspect after so many differences where it is on one route alone, if their share is by
so many standard errors larger than among the other comparisons. Of three peers one that always
gives wrong gradients is found by about ten."""
