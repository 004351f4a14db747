"""Packaging and papers: what they say must be so, and must be so on every machine."""

import re
import tomllib

from source import ROOT, report, text_files

PAPERS = (
    "README.md", "ARCHITECTURE.md", "docs/protocol.md", "docs/run-file.md", "CONTRIBUTING.md",
    "SECURITY.md", "CHANGELOG.md", "docs/organiser.md", "docs/strategies.md", "docs/pipelines.md",
    "benchmarks/README.md", "benchmarks/RESULTS.md", "docs/decisions.md", "docs/data.md",
    "docs/hooks.md", "docs/volunteer.md", "docs/requirements.md", "docs/comparison.md",
    "LICENSE",
)  # fmt: skip


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_papers_stand_beside_the_code():
    report([name for name in PAPERS if not (ROOT / name).is_file()])


def test_the_readme_is_short_enough_to_be_read():
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert len(words) <= 1000


def test_no_file_knows_the_machine_it_was_written_on():
    own = re.compile(
        r"(?<![\w.])/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "Us" + "ers")) + r")/[a-z]"
        r"|file:" + r"///|extra-index" + r"-url|find" + r"-links"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if own.search(line)
    ]
    report(found)


def test_papers_name_no_absolute_path():
    found = [
        f"{name}: {path}"
        for name in PAPERS[:-1]
        for path in re.findall(
            r"(?<![\w.:/])/(?:home|tmp|opt|usr|var|mnt)/\S+",
            (ROOT / name).read_text(encoding="utf-8"),
        )
    ]
    report(found)


def test_links_between_papers_lead_somewhere():
    found = []
    for name in PAPERS[:-1]:
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in target and not ((ROOT / name).parent / target).exists():
                found.append(f"{name}: {target}")
    report(found)


def test_what_is_cited_of_the_protocol_stands_there():
    paper = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    rules, steps = paper.split("## 2. Protocol")
    known = {f"rule {number}" for number in re.findall(r"^(\d+)\. \*\*", rules, re.M)}
    known |= set(re.findall(r"^- \*\*(T\d+) ", steps, re.M))
    known |= set(re.findall(r"^- \*\*([IL]\d+)\*\*", steps, re.M))
    found = []
    for path, text in text_files():
        for cited in re.findall(r"protocol\.md[\s#)]*([^.;)\]]{1,60})", text):
            words = " ".join(cited.split())
            named = re.match(r"(?:part \d,? )?rules? ((?:\d+(?:, | and | to )?)+)", words)
            named_rules = {f"rule {n}" for n in re.findall(r"\d+", named[1])} if named else set()
            named_steps = set(re.findall(r"\b[TIL]\d+\b", words)) if not named else set()
            found += [
                f"{path.relative_to(ROOT)}: {one}"
                for one in sorted((named_rules | named_steps) - known)
            ]
    assert {"rule 1", "rule 10", "T1", "T15", "I1", "I10", "L3"} <= known
    report(found)


def test_continuous_integration_runs_exactly_what_a_contributor_runs():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    assert commands[1].startswith("cd ")
    assert commands[2:] == ["make test"]


def test_every_dependency_is_pinned_to_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[<>=!~ ]", entry)[0].lower() for entry in wanted}
    assert names - set(pinned()) == set()


def test_torch_is_installed_first_and_in_the_pinned_version():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    calls = re.findall(r"\$\(PIP\) (.+)", makefile)
    assert f" torch=={pinned()['torch']} " in calls[0]
    assert "constraints.txt" not in calls[0]
    assert "constraints.txt" in calls[1]


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (ROOT / "swarmtrain" / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{project["version"]}"' in source


SIZE_ROW = re.compile(r"^\| `([\w/]+)` \| ([\d ]+) \|", re.MULTILINE)


def test_every_package_has_its_size_and_its_use_in_contributing():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = {name: int(lines.replace(" ", "")) for name, lines in SIZE_ROW.findall(page)}
    found = {
        package.relative_to(ROOT).as_posix(): sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in package.rglob("*.py")
        )
        for part in (
            "transport/swarmtrain_transport",
            "optimizers/swarmtrain_optimizers",
            "swarmtrain",
        )
        for package in sorted((ROOT / part).iterdir())
        if (package / "__init__.py").is_file()
    }
    report(
        [
            f"{name} has {lines} lines, CONTRIBUTING.md says {told.get(name, 'nothing')}"
            for name, lines in found.items()
            if lines > 50 and abs(lines - told.get(name, 0)) > max(100, lines / 10)
        ]
    )
    report(
        [f"CONTRIBUTING.md tells of {name}, which is none" for name in told.keys() - found.keys()]
    )
