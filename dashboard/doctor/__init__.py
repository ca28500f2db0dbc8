"""The doctor: is everything that Trimtab needs there, and does an empty picture mean idle cards or a fault?"""

from dashboard.doctor.check import Check, Status

__all__ = ["Check", "Status"]
