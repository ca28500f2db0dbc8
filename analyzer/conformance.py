# ruff: noqa: S101 - asserts are what a test-suite is made of
"""What every detector must keep, ours and third parties': subclass `DetectorConformance` in a test module.

class TestMine(DetectorConformance):
    def detector(self): return MyDetector()
    def partition(self): return a_partition_with_rows()
    def context(self): return a_context()
"""

from __future__ import annotations

from dataclasses import fields, replace

import pandas as pd

from analyzer.codes import codes
from analyzer.protocols import Context, Detector, Partition
from collector.schema import MEASUREMENTS

_FRAMES = tuple(f.name for f in fields(Partition) if "DataFrame" in str(f.type))


class DetectorConformance:
    """Tests that hold for any detector; the three makers are given by the subclass."""

    def detector(self) -> Detector:
        """Return a new detector."""
        raise NotImplementedError

    def partition(self) -> Partition:
        """Return a node with rows that the detector can measure."""
        raise NotImplementedError

    def context(self) -> Context:
        """Return what `conclude` may know beside the measures."""
        raise NotImplementedError

    def test_codes_and_needs_are_known(self) -> None:
        """Codes stand in the catalogue; needs name fields of the schema, alternatives joined by `|`."""
        detector = self.detector()
        assert detector.codes
        assert set(detector.codes) <= codes().keys()
        assert set(detector.needs) == set(detector.codes)
        for needs in detector.needs.values():
            for measurement, names in needs.items():
                for name in names:
                    assert set(name.split("|")) <= set(MEASUREMENTS[measurement].field_names), name

    def test_measuring_is_pure(self) -> None:
        """The same partition gives the same measures and stays as it was."""
        partition, untouched = self.partition(), self.partition()
        first = self.detector().measure(partition)
        pd.testing.assert_frame_equal(self.detector().measure(partition), first)
        for name in _FRAMES:
            pd.testing.assert_frame_equal(getattr(partition, name), getattr(untouched, name))

    def test_order_of_measures_does_not_matter(self) -> None:
        """Engines hand measures over in any order; the findings are equal to the last digit."""
        detector = self.detector()
        measures = detector.measure(self.partition())
        turned = measures[::-1].reset_index(drop=True)
        one, other = detector.conclude(measures, self.context()), detector.conclude(turned, self.context())
        assert [f.to_json() for f in other.findings] == [f.to_json() for f in one.findings]
        assert other.withheld == one.withheld

    def test_findings_are_whole(self) -> None:
        """Every finding carries a code of the detector, a claim, a risk, and numbers within their bounds."""
        detector = self.detector()
        for finding in detector.conclude(detector.measure(self.partition()), self.context()).findings:
            assert finding.code in detector.codes
            assert finding.claim
            assert finding.risk
            assert 0 <= finding.confidence <= 1
            assert 0 <= finding.coverage <= 1
            if finding.effect is not None:
                assert finding.effect.lower <= finding.effect.value <= finding.effect.upper
            assert finding.to_json()["id"] == finding.id

    def test_nothing_in_nothing_out(self) -> None:
        """A node without rows, and a fleet without measures, give no finding and no error."""
        detector, partition = self.detector(), self.partition()
        empty = replace(partition, **{name: getattr(partition, name).iloc[:0] for name in _FRAMES})
        assert detector.conclude(detector.measure(empty), self.context()).findings == []
        assert detector.conclude(pd.DataFrame(), self.context()).findings == []
