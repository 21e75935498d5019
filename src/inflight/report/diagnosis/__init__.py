"""Diagnosis: what the shape of the figures says, its likely cause, and the setting to change.

Rules are small functions over the figures of one run. Each looks at one thing and names the figures that led to it; a
rule that finds nothing says nothing. Thresholds stand beside the rule that uses them, with their reason.
"""

from inflight.report.diagnosis.diagnose import Diagnosis, diagnose
from inflight.report.diagnosis.finding import Evidence, Finding

__all__ = ["Diagnosis", "Evidence", "Finding", "diagnose"]
