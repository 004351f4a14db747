"""Sheets that the coordinator writes for FREEZE and COMMIT of an op in cells, and who is sent them.

They are made of what was reported, when a decision is made and again when it is sent out. After a
restart none is sent once more: peers have them of each other. The drawn auditor is also told what
the owner that it looks at has signed: nobody else needs it, and that one need not show it.
"""

from collections.abc import Iterator, Sequence

from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.ledger.audit import draw
from swarmtrain_transport.ledger.fold import OpDecision
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Sheet
from swarmtrain_transport.wire.records import Commit, Freeze
from swarmtrain_transport.wire.sheets import roots_sheet, signatures_sheet


def freeze_sheets(reports: Reports, contributors: tuple[PeerId, ...]) -> list[bytes]:
    """FREEZE's sheet of each cell; none without cells."""
    cells, roots = reports.view.cells, reports.roots_of(contributors)
    if cells.count == 1:
        return []
    named = (cells.among(contributors, cell) for cell in range(cells.count))
    return [roots_sheet(roots, peers) for peers in named]


def commit_sheets(reports: Reports, signatures: Sequence[bytes]) -> list[bytes]:
    """COMMIT's sheet of each cell; none without cells."""
    count = reports.view.cells.count
    return [signatures_sheet(signatures[cell::count]) for cell in range(count) if count > 1]


def sheets_for(reports: Reports, decision: OpDecision) -> Iterator[tuple[PeerId, Sheet]]:
    """Each member of an op, and the sheet of its cell in a decision that has some."""
    sheets: list[bytes] = []
    if isinstance(decision, Freeze):
        sheets = freeze_sheets(reports, decision.contributors)
    elif isinstance(decision, Commit):
        indexes = range(len(reports.view.owners) if decision.sheets else 0)
        published = [reports.current(index) for index in indexes]
        sheets = commit_sheets(reports, [one.signature if one else b"" for one in published])
    drawn = draw(reports.view) if sheets else None
    done = reports.current(drawn.place) if drawn is not None else None
    for peer, cell in reports.view.cells.of.items() if sheets else ():
        is_auditor = done is not None and drawn is not None and peer == drawn.auditor
        made = (done.inputs, *done.sums) if done is not None and is_auditor else ()
        yield peer, Sheet(decision.op, sheets[cell], reports.view.plan.group, made)
