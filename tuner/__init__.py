"""Tuner: what to do about it, done safely, undone when it hurts.

Findings and forecasts become a plan of groups; guards can only say no, or less; then come consent, journal, backend,
read-back and verification. This floor also holds the runner that joins store, detectors and state.
"""
