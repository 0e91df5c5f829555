"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from ktitan.doctor.redact import Redactor

__all__ = ["Finding", "format_bytes", "redacted", "to_json", "to_text"]

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What was looked at and what is there; an "error" makes ktitan unusable, and all but "ok" have a remedy."""

    name: str
    value: str
    status: Status = "ok"
    remedy: str = ""


Report = dict[str, list[Finding]]


def redacted(report: Report, hide: Redactor) -> Report:
    """The report without what names the user or the machine."""
    return {
        section: [replace(each, value=hide(each.value), remedy=hide(each.remedy)) for each in findings]
        for section, findings in report.items()
    }


def to_json(report: Report) -> dict[str, object]:
    """The report as plain data; `usable` is false when there is an error."""
    usable = all(finding.status != "error" for findings in report.values() for finding in findings)
    return {"usable": usable, **{section: [asdict(each) for each in findings] for section, findings in report.items()}}


def to_text(report: Report) -> str:
    """The report for people: one line a finding below its section's name, remedies in lines of their own."""
    lines = []
    for section, findings in report.items():
        lines.append(section)
        for finding in findings:
            lines.append(f"  {finding.status:<8}{finding.name:<19} {finding.value}")
            if finding.remedy:
                lines.append(f"{'':<30}remedy: {finding.remedy}")
    return "\n".join(lines)


def format_bytes(size_bytes: int) -> str:
    """A size in the largest binary unit in which it is at least one."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size_bytes / (1 << 10 * power):.4g} {units[power]}"
