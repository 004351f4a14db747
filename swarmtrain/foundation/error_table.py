"""The closed table of error ids: what each one means, what to do, and its exit status.

A script branches on the exit status, a person searches for the id, so neither is ever used again
for something else. Ids are SWT-E and three digits by area: 1 install, 2 network, 3 identity and
invites, 4 resources, 5 rounds, 6 settings, 7 admission, 8 data, 9 internal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

EXIT_DONE = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_BAD_DATA = 65
EXIT_INPUT_MISSING = 66
EXIT_UNREACHABLE = 69
EXIT_CANNOT_WRITE = 73
EXIT_TRY_LATER = 75
EXIT_PROTOCOL = 76
EXIT_NOT_ALLOWED = 77
EXIT_MUST_CHANGE = 78
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the table.

    Attributes:
        code: the id, ``SWT-E203``.
        title: the event, in a few words.
        exit_status: status of the process that ends with this error, as in sysexits.h.
        explanation: meaning and remedies, for `swarmtrain explain`.
    """

    code: str
    title: str
    exit_status: int
    explanation: str


_ROWS = (
    ErrorKind(
        "SWT-E101", "This machine calculates other bits", EXIT_MUST_CHANGE,
        "All peers of a run must end every round with the same bits. Before joining, a small\n"
        "calculation with a known result is made; here it gave another one, in operations that\n"
        "the message names. Usual causes are an unusual build of torch or numpy, or a changed\n"
        "rounding or flush mode. Install the versions of constraints.txt in a fresh environment.",
    ),
    ErrorKind(
        "SWT-E102", "An optional part is not installed", EXIT_MUST_CHANGE,
        "This needs a package that swarmtrain alone does not bring. The message\n"
        "names it and the command that installs it; everything else works without it.",
    ),
    ErrorKind(
        "SWT-E201", "Address already in use", EXIT_MUST_CHANGE,
        "Another program listens on that address and port, often an earlier run that still lives.\n"
        "Stop it, or choose another port with --listen HOST:PORT (port 0 picks a free one).",
    ),
    ErrorKind(
        "SWT-E202", "Cannot listen on that address", EXIT_MUST_CHANGE,
        "The address of --listen is not one of this machine, or the system does not allow it\n"
        "(ports under 1024 need rights). Use 127.0.0.1 for this machine alone, 0.0.0.0 for all\n"
        "its networks, and --public-host for the name under which others reach it.",
    ),
    ErrorKind(
        "SWT-E203", "The coordinator does not answer", EXIT_UNREACHABLE,
        "No connection to the address in the invite could be made. The run may be down, or over,\n"
        "for then its coordinator ends; a firewall may block the port, or the invite names an\n"
        "address that only its maker can reach (127.0.0.1 is always the machine that reads it).\n"
        "Nothing is lost: join again later with the same state directory.",
    ),
    ErrorKind(
        "SWT-E204", "Nothing is running there", EXIT_UNREACHABLE,
        "`swarmtrain status` asks the process that owns a state directory over a local socket,\n"
        "and no process answered. Start it with `swarmtrain up` or `swarmtrain join`, or name\n"
        "another directory with --state-dir.",
    ),
    ErrorKind(
        "SWT-E205", "Others cannot reach this peer there", EXIT_MUST_CHANGE,
        "Peers dial each other at IP addresses. A name given to --advertise or --listen is looked\n"
        "up by the peer that it names, at every connection to the coordinator; it must have an\n"
        "address, and not one that leads every reader to itself (127.0.0.1) unless the whole run\n"
        "is on this machine.",
    ),
    ErrorKind(
        "SWT-E206", "No way to this peer was found", EXIT_MUST_CHANGE,
        "A warning; the peer goes on, and ways are tried again and again. Most of the others\n"
        "could not open a connection to it, nor it to them; both at once did not work, and no\n"
        "relay was there. So nothing that others send comes here: no first weights, no results.\n"
        "The run goes on without it. Each of these helps: have the router forward a port (--map\n"
        "asks it to; by hand, --listen 0.0.0.0:PORT makes it always the same, and --advertise\n"
        "HOST:PORT names what the router forwards); a relay, which the organiser adds\n"
        "(`swarmtrain relay`, or `up --relay`); a VPN that all peers are in. `swarmtrain doctor`\n"
        "looks at the way.",
    ),
    ErrorKind(
        "SWT-E207", "A proxy stands in the way", EXIT_UNREACHABLE,
        "HTTPS_PROXY, or the system's settings, name a proxy for connections to other networks.\n"
        "It does not answer, wants a password (HTTP 407), or allows no connection to that port\n"
        "(HTTP 403): many allow 443 alone. NO_PROXY excepts hosts, names, and networks such as\n"
        "10.0.0.0/8. Proxies are asked in plain HTTP; SOCKS is not spoken.",
    ),
    ErrorKind(
        "SWT-E208", "Something else than the coordinator answers", EXIT_UNREACHABLE,
        "A login page of the network (hotel, train, guest Wi-Fi) answers for every address until\n"
        "somebody logs in; or a virus scanner or a company's filter opens encrypted connections\n"
        "and shows a certificate of its own; or the port is a web server's. Nothing was sent.\n"
        "Open any page in a browser and log in, or have the filter leave the coordinator alone.",
    ),
    ErrorKind(
        "SWT-E209", "The coordinator's name has no address", EXIT_UNREACHABLE,
        "The invite names the coordinator's host, and no name server knows it, or none answers.\n"
        "Does a browser find other sites? If so, ask the organiser for the name, or for an invite\n"
        "with the IP address.",
    ),
    ErrorKind(
        "SWT-E301", "This is not the coordinator of the invite", EXIT_NOT_ALLOWED,
        "The invite holds the hash of the coordinator's certificate, and whoever answered showed\n"
        "another one. Either the organiser has begun another run there (`up --new-run`), or\n"
        "somebody stands in between. Nothing was sent. Ask the organiser for a new invite by a\n"
        "way that you trust.",
    ),
    ErrorKind(
        "SWT-E302", "The identity file is damaged", EXIT_BAD_DATA,
        "The file with this peer's keys cannot be read. Bring back a copy of it, or move it away\n"
        "to join as a new peer.",
    ),
    ErrorKind(
        "SWT-E303", "The signature was refused", EXIT_NOT_ALLOWED,
        "The coordinator could not verify that this peer holds the key it names. The identity\n"
        "file was mixed from two peers, or messages were altered on the way.",
    ),
    ErrorKind(
        "SWT-E310", "No invite was given", EXIT_USAGE,
        "Put the invite that the organiser sent you into a file and name it with --invite-file\n"
        "(- is standard input), or set the environment variable SWARMTRAIN_INVITE; in a terminal\n"
        "it is asked for. swarmtrain join 'swarm://...' works too, but other users of the machine\n"
        "see it then in the list of processes.",
    ),
    ErrorKind(
        "SWT-E311", "This invite was used up", EXIT_NOT_ALLOWED,
        "An invite lets in only as many peers as its maker allowed. Ask for a new one. A peer\n"
        "that was let in before comes back with its old state directory and needs no new invite.",
    ),
    ErrorKind(
        "SWT-E312", "This is not an invite", EXIT_NOT_ALLOWED,
        "An invite looks like swarm://host:port/run#secret. Often its end was cut off, or the\n"
        "shell took the part behind # for a comment: put it into quotes.",
    ),
    ErrorKind(
        "SWT-E313", "The coordinator does not know this invite", EXIT_NOT_ALLOWED,
        "Its secret is not one that this coordinator gave out. It was made for another run, or\n"
        "altered. Ask the organiser for a new one.",
    ),
    ErrorKind(
        "SWT-E314", "This invite has expired", EXIT_NOT_ALLOWED,
        "The organiser set a time after which it lets nobody in. Ask for a new one.",
    ),
    ErrorKind(
        "SWT-E315", "This invite was withdrawn", EXIT_NOT_ALLOWED,
        "The organiser has revoked it. Ask for a new one.",
    ),
    ErrorKind(
        "SWT-E316", "The invite is for another run", EXIT_NOT_ALLOWED,
        "The coordinator that answered runs another run than the one that the invite names, and\n"
        "what this peer keeps would be filed under the wrong name. Ask the organiser for the\n"
        "invite of the run that is up.",
    ),
    ErrorKind(
        "SWT-E401", "A disk is full at this peer", EXIT_CANNOT_WRITE,
        "The last write is left out; all that was complete before is intact. Free some space\n"
        "and join again with the same state directory: the peer catches up.",
    ),
    ErrorKind(
        "SWT-E402", "The disk of the coordinator is full", EXIT_CANNOT_WRITE,
        "A decision that cannot be made durable is not made, so the coordinator stopped before\n"
        "sending it. Nothing is lost. Free some space and start it again on the same state\n"
        "directory; peers come back on their own.",
    ),
    ErrorKind(
        "SWT-E403", "A file or directory cannot be used", EXIT_CANNOT_WRITE,
        "It is not there and cannot be made, or is somebody else's. Name another place: that\n"
        "of a run's state with --state-dir, of compare's runs with --out.",
    ),
    ErrorKind(
        "SWT-E404", "Already running on this state directory", EXIT_TRY_LATER,
        "A state directory belongs to one process at a time. Stop the other one, or name another\n"
        "directory with --state-dir.",
    ),
    ErrorKind(
        "SWT-E405", "The daily amount of data is used up", EXIT_TRY_LATER,
        "--daily allows so many bytes per calendar day, both directions together. The peer took\n"
        "part in its last round to the end, told the others and left; the count begins anew at\n"
        "midnight, local time. Join again then with the same state directory, or allow more.",
    ),
    ErrorKind(
        "SWT-E406", "A process was ended by the system", EXIT_TRY_LATER,
        "`swarmtrain compare` makes runs side by side, each in a process, and one of these was\n"
        "ended from outside, usually because memory ran out. Runs that were finished are kept:\n"
        "the same command goes on with the others. Fewer --processes need less memory.",
    ),
    ErrorKind(
        "SWT-E407", "Memory ran out", EXIT_MUST_CHANGE,
        "The system gave this process no more memory, or a limit (`ulimit -v`, `ulimit -d`) was\n"
        "reached. What was complete on the disk is intact. In a run whose model is in stages,\n"
        "join with fewer of them: --span 1, or --memory 4GB for what fits; `swarmtrain plan`\n"
        "tells what each stage takes. Else end other programs, or allow more.",
    ),
    ErrorKind(
        "SWT-E408", "This peer runs elsewhere already", EXIT_TRY_LATER,
        "A process with this peer's key is in the run: it was started from this state directory,\n"
        "or one is a copy of the other. A key is one peer. Stop one of the two, or remove\n"
        "identity.json from the copy, which then is a peer of its own. If this peer was ended a\n"
        "moment ago, without its machine's saying so, join again in ten seconds.",
    ),
    ErrorKind(
        "SWT-E409", "Too few open files are allowed", EXIT_MUST_CHANGE,
        "A peer holds a few connections to each of the others and the files of its state. The\n"
        "system, or a limit on this process (`ulimit -n`), allows fewer than that takes. Allow\n"
        "more in the shell that starts it: ulimit -n 4096.",
    ),
    ErrorKind(
        "SWT-E410", "This machine's clock is off", EXIT_MUST_CHANGE,
        "A warning; a run does not go by the time of day. Logs and the daily amount of --daily\n"
        "do, and lines of several machines can only be compared by it. Let the system set it by\n"
        "itself (NTP).",
    ),
    ErrorKind(
        "SWT-E411", "The system does not take the service", EXIT_MUST_CHANGE,
        "The program that keeps services of a user (systemctl --user, launchctl or schtasks) has\n"
        "refused, in the words above. A machine that is reached by ssh alone may have no session\n"
        "of its own: `loginctl enable-linger` starts one. `swarmtrain service install --show`\n"
        "prints what would be installed, for another supervisor.",
    ),
    ErrorKind(
        "SWT-E412", "Another coordinator leads the run", EXIT_TRY_LATER,
        "Several coordinators may share a database (`swarmtrain up --store`), and one of them\n"
        "decides. Each decision is written with the number of its leader's term, so one that was\n"
        "away and comes back cannot add to what a newer one has begun. It stands by.",
    ),
    ErrorKind(
        "SWT-E413", "The database does not answer", EXIT_TRY_LATER,
        "The one that --store names is not there, or was lost on the way, or cannot write for\n"
        "now, as when its disk is full. Peers hold their states and wait. A coordinator that has\n"
        "led or stood by goes on by itself when it is back; one that has just been started says\n"
        "so and ends.",
    ),
    ErrorKind(
        "SWT-E414", "The database refuses", EXIT_MUST_CHANGE,
        "It answers, and does not do what the coordinator needs, for the reason in its own words.\n"
        "PostgreSQL 14 or later is needed, a user who may make a schema (or owns the one that is\n"
        "called swarmtrain and the run's name), and sessions of its own: no pooler that changes\n"
        "them between transactions.",
    ),
    ErrorKind(
        "SWT-E415", "The run's keys do not open", EXIT_NOT_ALLOWED,
        "In a database the keys of a run are sealed with a passphrase, or a file, that all its\n"
        "coordinators have (--key-file). This one is another. Without it nobody can go on as this\n"
        "run's coordinator, so keep a copy.",
    ),
    ErrorKind(
        "SWT-E450", "The model cannot be built here", EXIT_MUST_CHANGE,
        "Its weights are there, but the code of the model is not: peers brought the model from\n"
        "their own program, or it needs a package that is not installed. Load model.safetensors\n"
        "into that program's model.",
    ),
    ErrorKind(
        "SWT-E451", "The weights are of another model", EXIT_MUST_CHANGE,
        "Names or shapes of the tensors in a file are not those of the model that they are for.\n"
        "The message names the first three differences.",
    ),
    ErrorKind(
        "SWT-E452", "There is nothing to judge a model by", EXIT_BAD_DATA,
        "A model is judged by how well it foretells each token from those before it in a\n"
        "document. The text has no document of two tokens. Name more of it.",
    ),
    ErrorKind(
        "SWT-E453", "The run began with other weights than the organiser's", EXIT_PROTOCOL,
        "It was started with `up --from`, so its first state is known to every peer that is there\n"
        "from the beginning; somebody else's came first and was taken. Nothing was trained on.\n"
        "The organiser bans who has offered it (`swarmtrain peers ls`) and starts another run.",
    ),
    ErrorKind(
        "SWT-E454", "The weights to begin with are not there", EXIT_INPUT_MISSING,
        "`swarmtrain up --from` takes a run's name, state directories of its peers, the folder of\n"
        "an export, or a .safetensors file with all of the model. The file stays where it is\n"
        "until the run has its first state.",
    ),
    ErrorKind(
        "SWT-E455", "The model's values are no numbers", EXIT_BAD_DATA,
        "Weights, or what comes of them, are infinite or not a number (NaN): training went\n"
        "astray, or somebody made the file so. Such a model can neither write nor be judged.\n"
        "`swarmtrain status` shows the losses of a run; a checkpoint from before it went astray\n"
        "still has numbers.",
    ),
    ErrorKind(
        "SWT-E460", "The device is not there", EXIT_MUST_CHANGE,
        "--device names a card or chip that torch does not find. The message lists what it\n"
        "finds. A card needs its driver and a build of torch for it: the plain build on Linux\n"
        "has CUDA, the one of the index \"cpu\" has not. --device auto takes what is there.",
    ),
    ErrorKind(
        "SWT-E501", "The other side broke the protocol", EXIT_PROTOCOL,
        "A message was refused because no correct build sends it. Usually the two sides run\n"
        "different builds; else somebody sends hostile data. Compare `swarmtrain --version`.",
    ),
    ErrorKind(
        "SWT-E502", "The peer stopped to stay safe", EXIT_PROTOCOL,
        "Going on could have left this peer with other weights than the rest. Its own state is as\n"
        "before the round. Join again: it will take the shared state from the others.",
    ),
    ErrorKind(
        "SWT-E561", "This peer's state is not the run's", EXIT_PROTOCOL,
        "After a round this peer held other bits than the ledger names. It stopped before it\n"
        "could train on them. Join again: it will take the shared state from the others. If it\n"
        "happens again, suspect the memory or the processor of this machine.",
    ),
    ErrorKind(
        "SWT-E562", "This peer's ledger is not the run's", EXIT_PROTOCOL,
        "The records that this peer keeps are not a beginning of the coordinator's. The\n"
        "coordinator's state directory was perhaps brought back from an older copy, or the state\n"
        "directory here belongs to another run of the same name. Join with a new --state-dir.",
    ),
    ErrorKind(
        "SWT-E563", "This peer has published a wrong sum", EXIT_PROTOCOL,
        "An audit has summed a chunk of this peer's once more, and most peers have checked the\n"
        "proof. Its key is out of the run for good. If you did not intend this, suspect the\n"
        "memory or the processor of this machine, or an altered build.",
    ),
    ErrorKind(
        "SWT-E601", "Unknown key in the run file", EXIT_MUST_CHANGE,
        "A misspelt setting would silently be its default, so every unknown key is an error.",
    ),
    ErrorKind(
        "SWT-E602", "The run file is missing", EXIT_INPUT_MISSING,
        "There is no readable file of that name. The path is relative to where you are.",
    ),
    ErrorKind(
        "SWT-E603", "The run file is not TOML", EXIT_MUST_CHANGE,
        "It cannot be parsed as TOML in UTF-8. The message names the line.",
    ),
    ErrorKind(
        "SWT-E604", "Wrong type in the run file", EXIT_MUST_CHANGE,
        "A setting has another type than expected, for instance a text in quotes where a number\n"
        "belongs, or a required one is missing.",
    ),
    ErrorKind(
        "SWT-E605", "A setting is out of range", EXIT_MUST_CHANGE,
        "The value cannot work, alone or together with another one that the message names.",
    ),
    ErrorKind(
        "SWT-E606", "The run file has changed", EXIT_MUST_CHANGE,
        "The hash of the settings stands in the first record of the run's ledger, and every peer\n"
        "checks it. Bring back the old run file, or start a new run in another --state-dir.",
    ),
    ErrorKind(
        "SWT-E607", "Peers bring the model or the data of this run", EXIT_MUST_CHANGE,
        "Data (data.source `own`): join with --data PATH. A model of kind `custom` never travels:\n"
        "it comes with a training script. Whoever invited you has it; start it with the invite in\n"
        "SWARMTRAIN_INVITE. To write one: swarmtrain.join(model, optimizer), or for a model in\n"
        "stages swarmtrain.join_stages(model, batches).",
    ),
    ErrorKind(
        "SWT-E608", "The run file is of another schema", EXIT_MUST_CHANGE,
        "It was written for another version of swarmtrain. Update swarmtrain, or the file.",
    ),
    ErrorKind(
        "SWT-E609", "This run has a model and text of its own", EXIT_MUST_CHANGE,
        "Its run file names the built-in model and text that the coordinator gives out, and this\n"
        "peer brings others. Take part with `swarmtrain join`. For models and data that peers\n"
        "bring, the organiser starts a run with model.kind = \"custom\" and data.source = \"own\".",
    ),
    ErrorKind(
        "SWT-E610", "These options do not fit together", EXIT_USAGE,
        "The command line asks for something impossible; the message says what.",
    ),
    ErrorKind(
        "SWT-E611", "Not an address", EXIT_USAGE,
        "An address is HOST:PORT, for instance 127.0.0.1:8400 or [::1]:8400; the port is a number\n"
        "from 0 to 65535, and 0 picks a free one.",
    ),
    ErrorKind(
        "SWT-E612", "No such error id", EXIT_USAGE,
        "Error ids look like SWT-E203. The list is printed by `swarmtrain explain`.",
    ),
    ErrorKind(
        "SWT-E613", "The model cannot be cut so", EXIT_MUST_CHANGE,
        "In a pipeline each peer has some consecutive blocks of the model, and one tensor goes\n"
        "from a block to the next. Weights that two stages share, statistics of batches, and\n"
        "chance that cannot be repeated do not fit that. The message names the place and a way\n"
        "out.",
    ),
    ErrorKind(
        "SWT-E614", "No stage for this peer", EXIT_MUST_CHANGE,
        "It asks for stages that the run's model does not have, or gives less memory than they\n"
        "take. Ask for others with --span, leave it out to be given some, or give more with\n"
        "--memory.",
    ),
    ErrorKind(
        "SWT-E620", "The model's config cannot be used", EXIT_INPUT_MISSING,
        "[model] config of the run file names a config.json, as the transformers library saves it\n"
        "beside a model, or the folder with it. Nothing was found there, or something else. The\n"
        "path is taken from the run file's folder. What the file says travels to the peers, the\n"
        "path and weights do not.",
    ),
    ErrorKind(
        "SWT-E621", "The run's model cannot be made here", EXIT_MUST_CHANGE,
        "The transformers library makes no causal language model of the config that the run file\n"
        "brings: it is of another kind of model, of a type that the installed version does not\n"
        "know, or its sizes do not fit. Or the model has another number of logits than the run\n"
        "has tokens. Code that a config names is never fetched or run.",
    ),
    ErrorKind(
        "SWT-E622", "Not enough memory for the model", EXIT_MUST_CHANGE,
        "A batch did not go through the model: the memory of the processor or the card is full.\n"
        "Nothing is lost. join --micro-batch N lets N examples through at a time and adds up\n"
        "their gradients, so that the batch, and what the peer gives the run, stay the same; with\n"
        "auto the peer takes as many as fit.",
    ),
    ErrorKind(
        "SWT-E623", "The run names code of a package", EXIT_NOT_ALLOWED,
        "With kind = \"module:pkg.name\" a run's model is made by a function that every peer has\n"
        "installed, with optimizer = \"pkg:Class\" its inner steps by such a class. A run file\n"
        "comes from its organiser, so the code is imported only where its name was also given on\n"
        "this machine: join --module pkg.name, or the environment variable SWARMTRAIN_MODULE.\n"
        "Name only code of packages that you trust.",
    ),
    ErrorKind(
        "SWT-E624", "The model cannot be compiled here", EXIT_MUST_CHANGE,
        "join --compile lets torch compile the model. On a processor that takes a C++ compiler,\n"
        "on a card Triton; torch found none, or could not do it with this model. Without\n"
        "--compile the peer trains as well, only slower.",
    ),
    ErrorKind(
        "SWT-E630", "The optimizer trains another model", EXIT_MUST_CHANGE,
        "swarmtrain.join got a model and an optimizer that have no trainable parameter in\n"
        "common. Often the model was copied, quantized or wrapped after the optimizer was made;\n"
        "some optimizers keep 32-bit copies, and would write over what the swarm has put into the\n"
        "model. Make the optimizer of the parameters of the very model that joins.",
    ),
    ErrorKind(
        "SWT-E631", "This model cannot be exchanged as it is", EXIT_MUST_CHANGE,
        "Parameters that have requires_grad when swarmtrain.join is called are exchanged. They\n"
        "must be there with their values, not lazy and not on the meta device, and of a real\n"
        "floating type. Before joining, freeze those that are not, and unfreeze those that the\n"
        "run should train.",
    ),
    ErrorKind(
        "SWT-E632", "A loop of one's own cannot give what the run exchanges", EXIT_MUST_CHANGE,
        "The run's strategy exchanges gradients (ddp) or losses beside the weights (one_byte) of\n"
        "every step. swarmtrain.join comes after the step, when it is too late for them. The\n"
        "organiser can choose another outer.strategy: those that exchange weights take any loop.",
    ),
    ErrorKind(
        "SWT-E633", "The model's costs are not known here", EXIT_MUST_CHANGE,
        "`swarmtrain plan` works with sizes, and the model of this run is in its peers' own\n"
        "programs. Plan with a run file of kind `transformer` of about its size.",
    ),
    ErrorKind(
        "SWT-E641", "The model of a torchrun job cannot be exchanged", EXIT_MUST_CHANGE,
        "A job of several processes is one peer, and each of them must hold whole parameters, as\n"
        "with DistributedDataParallel, or boxes of them, as with fully_shard (FSDP2) or tensor\n"
        "parallelism by DTensor. FullyShardedDataParallel, the first version, makes one flat\n"
        "parameter of many, which has no place in a run: use fully_shard.",
    ),
    ErrorKind(
        "SWT-E642", "A torchrun job cannot be a peer of this run", EXIT_MUST_CHANGE,
        "Each process of a job works on its own part of the model. That does for strategies and\n"
        "codecs that treat values one by one or block by block, and not for all; the message says\n"
        "which setting of the run it is. Join from one process, or have the setting changed.",
    ),
    ErrorKind(
        "SWT-E643", "A rank of a torchrun job is missing", EXIT_MUST_CHANGE,
        "All processes of a job join a run together, each by calling swarmtrain.join with the\n"
        "invite. Some did not come within two minutes. Usually SWARMTRAIN_INVITE is not set on\n"
        "every machine, or join is called behind `if rank == 0`.",
    ),
    ErrorKind(
        "SWT-E644", "Processes of torchrun train apart", EXIT_MUST_CHANGE,
        "torchrun has started several processes, and no process group was made before\n"
        "swarmtrain.join: each would train alone, as a peer of its own under one name. A loop of\n"
        "your own calls torch.distributed.init_process_group; Lightning's Trainer needs devices\n"
        "and num_nodes, as examples/trainer_lightning.py has them. For several peers start each\n"
        "without torchrun.",
    ),
    ErrorKind(
        "SWT-E650", "A program of the emulation failed", EXIT_MUST_CHANGE,
        "`swarmtrain emulate` starts copies of a program, and one ended with an error of its own.\n"
        "The last lines of its log are shown, and where the rest is; all others were ended. See\n"
        "first that the program runs alone, without SWARMTRAIN_INVITE.",
    ),
    ErrorKind(
        "SWT-E651", "The program never joined", EXIT_MUST_CHANGE,
        "A program becomes a peer by calling swarmtrain.join(model, optimizer), which finds its\n"
        "invite in the environment. One that ended without it, or that has not come to it after\n"
        "minutes, takes no part. An invite that the program gives itself goes before the one in\n"
        "the environment; a launcher may keep the environment from it.",
    ),
    ErrorKind(
        "SWT-E652", "Links of the system's own cannot be made", EXIT_MUST_CHANGE,
        "Network namespaces need Linux, root, the commands ip and tc, and for a delay the\n"
        "kernel's netem. Without `--links namespaces` relays model the links instead.",
    ),
    ErrorKind(
        "SWT-E653", "There is no such program", EXIT_INPUT_MISSING,
        "The program after -- is looked for as a shell would do it, from the directory that you\n"
        "are in.",
    ),
    ErrorKind(
        "SWT-E701", "The run is full", EXIT_TRY_LATER,
        "It has as many peers as its organiser allows (admission.peers_max). Try again later; a\n"
        "peer that was in before waits for its place by itself.",
    ),
    ErrorKind(
        "SWT-E702", "You were removed from this run", EXIT_NOT_ALLOWED,
        "The organiser has sent this peer away; the message says why, if a reason was given. Who\n"
        "was removed may join again with the same state directory. A ban holds for the peer's key\n"
        "until the organiser lifts it.",
    ),
    ErrorKind(
        "SWT-E703", "The versions do not fit", EXIT_MUST_CHANGE,
        "Peer and coordinator speak no common version of the protocol. Update the older one.",
    ),
    ErrorKind(
        "SWT-E704", "Too many failed tries from this address", EXIT_TRY_LATER,
        "The coordinator slows down whoever knocks with bad invites. Wait a minute.",
    ),
    ErrorKind(
        "SWT-E705", "The run is over", EXIT_TRY_LATER,
        "Its last round is committed and the coordinator takes no more peers. The message says\n"
        "what came of it and who has the model.",
    ),
    ErrorKind(
        "SWT-E706", "The coordinator has lost its ledger", EXIT_TRY_LATER,
        "Its keys are there and the log of the run's decisions is not. It decides nothing and\n"
        "lets nobody new in until a peer comes back that keeps a copy, as every peer does that\n"
        "was in the run before. Try again when the organiser says that the run goes on.",
    ),
    ErrorKind(
        "SWT-E707", "The run is closed to newcomers", EXIT_TRY_LATER,
        "The organiser lets nobody new in for now (`swarmtrain run close`). Peers that were in\n"
        "before come back as ever. Try again later, or ask the organiser.",
    ),
    ErrorKind(
        "SWT-E708", "The coordinator decides nothing yet", EXIT_TRY_LATER,
        "After a restart it first hears its peers: one of them may hold decisions that its disk\n"
        "has lost. That takes seconds, or until somebody with a copy of the ledger is back.\n"
        "Repeat the command then.",
    ),
    ErrorKind(
        "SWT-E709", "The coordinator asks this peer to slow down", EXIT_TRY_LATER,
        "Its key came again and again, or said many times what the protocol needs, so that its\n"
        "connection was cut for the sake of the others. It may come back after the time that the\n"
        "message names. A peer of this package that meets it has a fault worth reporting.",
    ),
    ErrorKind(
        "SWT-E710", "The run has gone on without this peer", EXIT_TRY_LATER,
        "Its model is in stages, and micro-batches are counted for a process. One that was not\n"
        "heard for too long, or that gets other stages, begins anew with the run's state; nothing\n"
        "is to be done.",
    ),
    ErrorKind(
        "SWT-E801", "No training text was found", EXIT_INPUT_MISSING,
        "The built-in text is the standard library's own sources, and this Python comes without\n"
        "them (embedded and zipped builds do). Start the coordinator with an ordinary Python.",
    ),
    ErrorKind(
        "SWT-E802", "A piece of text is not what its name says", EXIT_PROTOCOL,
        "Pieces are named by their hash, and the bytes that came have another one, or hold\n"
        "tokens that the model does not know. Nothing was trained on them.",
    ),
    ErrorKind(
        "SWT-E803", "The checkpoint is damaged", EXIT_BAD_DATA,
        "A file is missing, cut off or altered: its SHA-256 is not the one in the manifest. An\n"
        "older checkpoint beside it, or another peer, may still have the state.",
    ),
    ErrorKind(
        "SWT-E804", "The model is not the run's", EXIT_MUST_CHANGE,
        "Names, shapes or types of the parameters differ from those of the peers in the run, so\n"
        "their differences cannot be averaged. Build the model exactly as the run does. In stages\n"
        "its blocks, the size of a micro-batch and the labels must be the same too.",
    ),
    ErrorKind(
        "SWT-E805", "The run's log is damaged", EXIT_BAD_DATA,
        "A record in the coordinator's state directory does not follow from the one before, or\n"
        "its keys are gone. Bring back the directory from a copy. Where only the log is damaged,\n"
        "move ledger.sqlite* away and start again: with its keys the coordinator takes the log\n"
        "from the copy that a peer keeps. Without its keys the run cannot go on; `swarmtrain up\n"
        "--new-run` begins another one there.",
    ),
    ErrorKind(
        "SWT-E806", "No such state directory", EXIT_INPUT_MISSING,
        "Nothing has run with that directory yet, or it was removed.",
    ),
    ErrorKind(
        "SWT-E807", "The state directory proves nothing", EXIT_BAD_DATA,
        "`swarmtrain verify` makes the way from a checkpoint to the newest state again, from the\n"
        "directory alone, and it did not get there: a file is damaged or missing, or the ledger\n"
        "names another state. A peer that is started on the directory mends what it can and takes\n"
        "the rest from the others; to keep the directory as evidence, copy it first.",
    ),
    ErrorKind(
        "SWT-E808", "No such round", EXIT_INPUT_MISSING,
        "`swarmtrain why` tells a round from the ledger of a state directory, and that ledger has\n"
        "no such round: it was not planned yet, or the directory stopped at an earlier one.",
    ),
    ErrorKind(
        "SWT-E809", "No such peer or invite", EXIT_INPUT_MISSING,
        "A peer is named by the beginning of its id or by its name, an invite likewise; what was\n"
        "given stands for none of them, or for more than one.",
    ),
    ErrorKind(
        "SWT-E810", "The state directory is of an earlier version", EXIT_MUST_CHANGE,
        "The ledger there was written by an earlier version of swarmtrain, in a form that this\n"
        "one does not read. Nothing was changed. A run ends with the version that it began with.\n"
        "To go on with its model here, take it from a peer's newest checkpoint, which is\n"
        "safetensors, and start a new run from it, with another state directory.",
    ),
    ErrorKind(
        "SWT-E811", "A stage of the model is not here", EXIT_INPUT_MISSING,
        "Each peer keeps checkpoints of the stages that it serves. Name the directories of peers\n"
        "that together serve all of them, or of one that has joined with all as its --span.",
    ),
    ErrorKind(
        "SWT-E812", "A file is not what it should be", EXIT_BAD_DATA,
        "A file in a folder that is read is a pipe, a device or a folder, or far longer than such\n"
        "a file can be. It was not made by swarmtrain, and was not read.",
    ),
    ErrorKind(
        "SWT-E813", "The receipt proves nothing", EXIT_BAD_DATA,
        "A receipt holds three records of a run's ledger, each signed by the run key. The file is\n"
        "cut, altered or too long, its records are not of one round and its peer, or the run key\n"
        "is not the one that was asked for. Whoever has a copy of the ledger makes it again.",
    ),
    ErrorKind(
        "SWT-E814", "No round and no receipt is here", EXIT_INPUT_MISSING,
        "Receipts and cards are of rounds whose result has a peer's work, and none was found: the\n"
        "folder has no file that ends in .receipt, or no such round has ended yet.",
    ),
    ErrorKind(
        "SWT-E820", "The training text is not there", EXIT_INPUT_MISSING,
        "The place that --data, data.source or data.validation names has no text, or cannot be\n"
        "read. A path in a run file is relative to that file, one of --data to the directory of\n"
        "the command. Where a run's own text cannot be read, no run was started.",
    ),
    ErrorKind(
        "SWT-E821", "The data is not text", EXIT_BAD_DATA,
        "Nothing at that place is UTF-8 text. Other files are skipped, and here nothing was left.",
    ),
    ErrorKind(
        "SWT-E822", "There is too little text", EXIT_BAD_DATA,
        "Both the text to train on and the text to judge by must hold one example, which has\n"
        "model.context tokens and one more. Give more text, or make model.context smaller.",
    ),
    ErrorKind(
        "SWT-E823", "The training text was changed", EXIT_MUST_CHANGE,
        "Pieces of text are named by their hashes, and these are not those that the run began\n"
        "with. Bring the old files back. `swarmtrain up --changed-text` goes on with the text as\n"
        "it is now; what was used of the old one is forgotten, and nothing else.",
    ),
    ErrorKind(
        "SWT-E824", "The tokenizer does not fit", EXIT_MUST_CHANGE,
        "A run has one tokenizer, named by the SHA-256 of its tokenizer.json. The file is missing\n"
        "or another one, cannot be read, or has more tokens than the model has outputs.",
    ),
    ErrorKind(
        "SWT-E825", "The token ids do not fit", EXIT_BAD_DATA,
        "A .bin file of nanoGPT or llm.c is damaged or of an unknown form, or holds ids that the\n"
        "model does not know. Name the tokenizer that made it, or the number of its tokens.",
    ),
    ErrorKind(
        "SWT-E826", "The text is made of other tokens", EXIT_BAD_DATA,
        "A volunteer's own data holds token ids, and nothing says that the run's tokenizer made\n"
        "them. Bring the text itself, or put that tokenizer.json beside the ids.",
    ),
    ErrorKind(
        "SWT-E827", "The run has text of its own", EXIT_MUST_CHANGE,
        "The coordinator of this run gives out the text, so that every piece is read once per\n"
        "pass. Join without --data. Volunteers bring text where the run's source is \"own\".",
    ),
    ErrorKind(
        "SWT-E901", "Unexpected fault (a bug)", EXIT_BUG,
        "The program met something that its authors did not foresee. The message names a report\n"
        "with the details; read it before you send it to anybody, it may hold paths and names.",
    ),
)  # fmt: skip

TABLE: Mapping[str, ErrorKind] = MappingProxyType({row.code: row for row in _ROWS})
"""Every error id that the program can print."""
