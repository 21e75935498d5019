"""Diagnosis: rules over the figures of a setting, which name the cause and the option to change."""

from inflight.report.diagnosis.diagnose import Diagnosis, diagnose
from inflight.report.diagnosis.rules import Evidence, Finding

__all__ = ["Diagnosis", "Evidence", "Finding", "diagnose"]
