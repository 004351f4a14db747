"""The rules of the house, executed. Each finding names the file and the line.

Method: the source is read, never imported. Import directions come first, then sizes (lengths are a
sign that somebody should look, so they warn), then words and habits that have no place here.
"""

import ast
import re
import warnings

import pytest
from floors import PARTS, STRANGERS, TRANSPORT_SHELLS
from source import ROOT, Module, circles, functions, modules, reached_from, report, text_files

from swarmtrain.foundation.error_table import TABLE

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
LINE_CHARS_MAX = 100

SOCKETS = {
    "socket", "ssl", "select", "selectors", "asyncio", "threading", "multiprocessing", "zmq",
    "concurrent", "subprocess", "aiohttp", "http", "urllib", "socketserver", "signal",
}  # fmt: skip
FILES = {"os", "io", "pathlib", "shutil", "tempfile", "sqlite3", "fcntl", "mmap"}
AMBIENT = {"time", "random", "secrets", "uuid", "datetime"}
UNSAFE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
BANNED_WORDS = {"node", "worker", "miner", "quorum", "method", "algo", "epoch"}
BANNED_FILES = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "misc.py"}


def of(part: str) -> list[Module]:
    return [module for module in modules().values() if module.part == part]


def imported(module: Module, forbidden: set[str]) -> list[str]:
    """Findings: imports whose first word is forbidden, for type checkers alone or not."""
    return [
        f"{module.at(found.line)} imports {found.name}"
        for found in module.imports
        if found.name.partition(".")[0] in forbidden
    ]


def line_of(place: str, lines: tuple[str, ...]) -> int | None:
    """Index of the line that names the place's package, or the place where it stands in none."""
    package = place.partition(".")[0]
    return next((index for index, line in enumerate(lines) if package in line.split()), None)


# ---- import directions


def test_transport_knows_no_tensors_and_nothing_above_it():
    above = {"torch", "numpy", "safetensors", "swarmtrain", "swarmtrain_optimizers"}
    report([line for module in of("swarmtrain_transport") for line in imported(module, above)])


def test_optimizers_know_no_sockets_no_files_no_clock_and_nothing_above_them():
    forbidden = SOCKETS | FILES | AMBIENT | {"swarmtrain", "swarmtrain_transport"}
    found = [line for module in of("swarmtrain_optimizers") for line in imported(module, forbidden)]
    report(found)


def test_within_transport_only_the_shells_do_io():
    found = []
    for module in of("swarmtrain_transport"):
        if module.place in TRANSPORT_SHELLS:
            continue
        allowed = (
            {"os"} if module.place == "credentials.identity" else set()
        )  # new keys need chance
        found += imported(module, (SOCKETS | FILES | AMBIENT) - allowed)
        found += [
            f"{module.at(call.lineno)} calls open()"
            for call in ast.walk(module.tree)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "open"
        ]
    report(found)


def test_zmq_is_imported_in_zmq_link_its_sockets_and_what_attacks_them_alone():
    places = {name for name, module in modules().items() if imported(module, {"zmq"})}
    assert places <= {
        "swarmtrain.chaos.siege.libzmq_attack",
        "swarmtrain_transport.links.zmq_link",
        "swarmtrain_transport.links.zmq_sockets",
        "swarmtrain_transport.links.zmq_turned",
    }


def test_the_coordinator_never_reaches_tensors_or_the_data_lane():
    ways = reached_from("swarmtrain.coordinator")
    forbidden = ("torch", "numpy", "safetensors", "zmq")
    report([" -> ".join(ways[name]) for name in forbidden if name in ways])


@pytest.mark.parametrize("part", PARTS)
def test_every_file_stands_on_a_line_and_imports_from_its_own_or_above(part):
    lines = PARTS[part]
    found = []
    for module in of(part):
        if not module.place:
            continue
        own = line_of(module.place, lines)
        if own is None:
            found.append(f"{module.name} stands on no line of tests/house/floors.py")
            continue
        for target in module.imports:
            place = target.name.partition(".")[2]
            if target.typing_only or target.name.partition(".")[0] != part or not place:
                continue
            above = line_of(place, lines)
            if above is not None and above > own:
                found.append(f"{module.at(target.line)} imports {target.name} from below its line")
    report(found)


def test_neighbours_that_are_strangers_do_not_import_each_other():
    found = [
        f"{module.at(target.line)} imports {target.name}"
        for module in modules().values()
        for target in module.imports
        for pair in STRANGERS
        for who, whom in (pair, pair[::-1])
        if f"{module.name}.".startswith(f"{who}.") and f"{target.name}.".startswith(f"{whom}.")
    ]
    report(found)


def test_no_imports_go_in_a_circle():
    report([" <-> ".join(circle) for circle in circles()])


def test_what_runs_is_not_built_from_the_command_line():
    found = [
        f"{module.at(target.line)} imports {target.name}"
        for module in modules().values()
        for target in module.imports
        if target.name.startswith("swarmtrain.cli")
        and not module.name.startswith(("swarmtrain.cli", "swarmtrain.__main__"))
    ]
    report(found)


def test_imports_are_absolute_and_without_stars():
    found = [
        f"{module.at(part.lineno)} {ast.unparse(part)}"
        for module in modules().values()
        for part in ast.walk(module.tree)
        if isinstance(part, ast.ImportFrom) and (part.level or part.names[0].name == "*")
    ]
    report(found)


# ---- sizes


def test_lines_stay_readable():
    found = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} characters"
        for path, text in text_files()
        if path.suffix == ".py"
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > LINE_CHARS_MAX
    ]
    report(found)


def test_long_files_and_functions_are_asked_about():
    long = [
        f"{path.relative_to(ROOT)} has {len(text.splitlines())} lines"
        for path, text in text_files()
        if path.suffix == ".py" and len(text.splitlines()) > FILE_LINES_MAX
    ]
    for module in modules().values():
        for function in functions(module.tree):
            num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if num_lines > FUNCTION_LINES_MAX:
                long.append(f"{module.at(function.lineno)} {function.name} has {num_lines} lines")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a sign, not a law: it is shown, and nothing fails
        for line in long:
            warnings.warn(line, stacklevel=1)


# ---- words and habits


def test_files_of_tests_have_names_of_their_own():
    """Or pytest, which imports them by name alone, cannot collect all of them at once."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_no_file_is_a_drawer_for_everything():
    found = [module.at(1) for module in modules().values() if module.path.name in BANNED_FILES]
    report(found)


def test_every_module_says_what_it_is():
    missing = [name for name, module in modules().items() if not ast.get_docstring(module.tree)]
    report(missing)


def test_docstrings_begin_with_a_verb_or_a_noun():
    riddle = re.compile(
        r'^\s*r?"""(?:What|Whether|Who|Whoever|Whose|Where|How|By how|Of|As|So|The same|Those'
        r"|All of them|Something|Everybody)\b"
    )
    found = [
        f"{module.at(number)} {line.strip()[:60]}"
        for module in modules().values()
        for number, line in enumerate(module.text.splitlines(), start=1)
        if riddle.match(line)
    ]
    report(found)


def test_arguments_attributes_and_results_are_named_by_nouns():
    """Not by halves of sentences: "tick in which each peer gave", not "when each peer gave"."""
    section = re.compile(r"^( *)(?:Args|Attributes|Returns|Yields):$")
    entry = re.compile(r"^( *)(?:[*\w`]+(?:, [*\w`]+)*: )?(.*)$")
    half = re.compile(
        r"(?:what|whether|who|whose|whom|how|where|when|why|which|of|that|its?)\b"
        r"|(?:after|by|for|in|since|to|until|with) (?:how|what|when|which|whom)\b"
        r"|(?:the |our |an? )?\w+'s[.,;]",
        re.IGNORECASE,
    )
    found = []
    for module in modules().values():
        indent = -1
        for number, line in enumerate(module.text.splitlines(), start=1):
            if begins := section.match(line):
                indent = len(begins[1]) + 4
            elif '"""' in line or (len(line) - len(line.lstrip()) < indent and line.strip()):
                indent = -1
            elif (told := entry.match(line)) and len(told[1]) == indent and half.match(told[2]):
                found.append(f"{module.at(number)} {line.strip()[:60]}")
    report(found)


def test_one_word_per_thing():
    found = []
    for module in modules().values():
        for name, line in (*_defined(module.tree), (module.path.stem, 1)):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
            bad = {word for word in words if word.removesuffix("s") in BANNED_WORDS}
            if bad:
                found.append(f"{module.at(line)} {name}: say it with the house's words")
    report(found)


def _defined(tree: ast.Module):
    """Names that this source brings into being, with their lines."""
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name, part.lineno
        elif isinstance(part, ast.arg):
            yield part.arg, part.lineno
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id, part.lineno
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield part.attr, part.lineno


def test_nothing_that_runs_code_from_data():
    found = []
    for module in modules().values():
        found += imported(module, UNSAFE)
        for call in ast.walk(module.tree):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func)
            if name in {"eval", "exec", "__import__", "torch.load", "numpy.load", "np.load"}:
                found.append(f"{module.at(call.lineno)} calls {name}")
    report(found)


def test_no_optimizer_of_torch_makes_the_outer_step():
    # protocol.md rule 4: torch's SGD gives other bits on another processor.
    places = [
        module.name
        for module in modules().values()
        if re.search(r"\boptim\.SGD\(|\bimport SGD\b", module.text)
    ]
    report(places)


def test_no_fault_is_swallowed():
    found = []
    for module in modules().values():
        for part in ast.walk(module.tree):
            if not isinstance(part, ast.ExceptHandler):
                continue
            kind = ast.unparse(part.type) if part.type else ""
            empty = all(isinstance(line, ast.Pass | ast.Continue) for line in part.body)
            if not kind or (kind in {"Exception", "BaseException"} and empty):
                found.append(f"{module.at(part.lineno)} except {kind}")
    report(found)


def test_no_mutable_state_at_module_level():
    makers = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"}
    changers = {
        "append", "add", "update", "pop", "clear", "extend", "insert", "remove", "setdefault",
        "popitem", "discard",
    }  # fmt: skip
    found = []
    for module in modules().values():
        mutable = set()
        for part in module.tree.body:
            targets = part.targets if isinstance(part, ast.Assign) else []
            if isinstance(part, ast.AnnAssign):
                targets = [part.target]
            value = getattr(part, "value", None)
            made = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)
            made |= isinstance(value, ast.Call) and ast.unparse(value.func) in makers
            for name in [ast.unparse(target) for target in targets] if made else []:
                mutable.add(name)
                if name != name.upper() and name != "__all__":
                    found.append(f"{module.at(part.lineno)} {name} is no constant")
        for part in ast.walk(module.tree):
            if isinstance(part, ast.Global):
                found.append(f"{module.at(part.lineno)} global {', '.join(part.names)}")
            changed = ""
            if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store | ast.Del):
                changed = ast.unparse(part.value)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                changed = ast.unparse(part.func.value) if part.func.attr in changers else ""
            if changed in mutable:
                found.append(f"{module.at(part.lineno)} changes the constant {changed}")
    report(found)


def test_all_that_people_read_goes_through_the_place_that_makes_it_harmless():
    """`console.lines.show`: what is printed past it may hold what a terminal obeys."""
    past = ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write")
    found = [
        f"{module.at(call.lineno)} is not said by console.lines.show"
        for module in modules().values()
        if module.name != "swarmtrain.config.docs"
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in past
    ]
    report(found)


def test_no_work_is_left_for_later():
    marks = re.compile(
        "|".join(rf"\b{a}{b}\b" for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))
    )
    unbuilt = "NotImplemented" + "Error"
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if marks.search(line) or (unbuilt in line and path.suffix == ".py")
    ]
    report(found)


def test_every_error_id_in_the_code_is_in_the_table():
    found = [
        f"{module.at(number)} {code}"
        for module in modules().values()
        for number, line in enumerate(module.text.splitlines(), start=1)
        for code in re.findall(r"SWT-[A-Z][0-9]+", line)
        if code not in TABLE
    ]
    report(found)
