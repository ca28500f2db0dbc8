"""Service: the loops that join store, detectors, forecaster, planner, guards, journal and backend."""
