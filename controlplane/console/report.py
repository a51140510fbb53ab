"""Console pages at /audit/report: an audit report, shown in the console or downloaded as signed files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from controlplane.console.pages import Page, PageRequest, Redirect, Refusal, page, reasons
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.perform import perform
from controlplane.operations.report import begin
from controlplane.operations.report_key import KeyAsked, report_key
from controlplane.operations.report_period import Period, ReportAsked, period_of
from controlplane.report.report_file import answer_in
from controlplane.report.resource_classes import CLASSES
from controlplane.report.sections import Section, sections
from controlplane.store.interface import StoreBusy
from proxy.wire.audit_event import rfc3339

_WAIT_SECONDS: Final = 1.5  # longest wait for the report; after that, the page shows progress and reloads
_NAME: Final = "Audit report"


@page("GET", "/audit/report", "from", "to", *CLASSES)
async def report(context: OperationContext, actor: Actor, request: PageRequest) -> Page | Redirect:
    chosen = tuple(name for name in CLASSES if request.query.get(name))
    values = {
        "classes": [(name, each.covers, name in (chosen or ("mail",))) for name, each in CLASSES.items()],
        "progress": None,
        "answer": None,
        "key": (await perform(report_key, context, actor, KeyAsked())).key,
    }
    if not chosen:
        if request.query.get("from") is None:
            return Page("report.html", _NAME, values)
        none = ("No class is chosen: choose at least one.",)
        return Page("report.html", _NAME, values, status=422, refused=none)
    if request.org is None:
        return Page("report.html", _NAME, values, status=422, refused=("Choose an organisation.",))
    asked = ReportAsked(request.org.org_id, request.query.get("from"), request.query.get("to"), chosen)  # type: ignore[arg-type]
    try:
        period = await period_of(context, actor, asked)
        fixed = _fixed(period)
        if any(request.query.get(name) != fixed[name] for name in ("from", "to")):
            return Redirect(request.link("/audit/report", **fixed, **dict.fromkeys(chosen, "yes")))
        made = begin(context, actor, period)
        files = await made.files_within(_WAIT_SECONDS)
    except (*Refusal, StoreBusy) as error:
        return Page("report.html", _NAME, values, status=422, refused=reasons(error))
    if files is None:
        return Page("report.html", _NAME, {**values, "progress": made.progress})
    answer = answer_in(files.json)
    found = {
        "answer": answer,
        "sections": [_with_rows(each) for each in sections(answer)],
        "downloads": _downloads(period),
    }
    return Page("report.html", _NAME, {**values, **found})


def _with_rows(section: Section) -> tuple[Section, list[dict[str, str]]]:
    """Return a report section and its rows.

    Each row of the report section is a mapping from column name to value.
    """
    return section, [dict(zip(section.columns, row, strict=True)) for row in section.rows]


def _fixed(period: Period) -> Mapping[str, str]:
    return {"from": rfc3339(period.from_ms), "to": rfc3339(period.to_ms)}


def _downloads(period: Period) -> list[tuple[str, str]]:
    classes = [("class", each) for each in period.classes]
    asked = [("org", period.org.org_id), *_fixed(period).items(), *classes]
    return [
        (form.upper(), f"/admin/v1/audit/report?{urlencode([*asked, ('format', form)])}")
        for form in ("html", "json")
    ]
