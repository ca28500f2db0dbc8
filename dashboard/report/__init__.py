"""The weekly report: one model, shown as HTML, Markdown and JSON."""

from dashboard.report.model import Report
from dashboard.report.write import weekly_report, write_weekly

__all__ = ["Report", "weekly_report", "write_weekly"]
