"""Every store keeps the same laws: unsealed, sealed after each write, merged after each write, and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from collector.batch import Batch
from collector.conformance import StoreConformance, StoreReaderConformance, window
from collector.protocols import Store, StoreReader
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore, export_rows, load_rows


class TestUnsealed(StoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], Store]]:
        opened: list[EmbeddedStore] = []

        def make() -> Store:
            opened.append(EmbeddedStore(StoreSettings(path=tmp_path / f"store-{len(opened)}")))
            return opened[-1]

        yield make
        for store in opened:
            store.close()


class TestSealed(TestUnsealed):
    def settle(self, store: Store) -> None:
        assert isinstance(store, EmbeddedStore)
        store.seal()


class TestMerged(TestUnsealed):
    def settle(self, store: Store) -> None:
        assert isinstance(store, EmbeddedStore)
        store.seal()
        store.merge()


class TestInMemory(StoreReaderConformance):
    @pytest.fixture
    def make_reader(self) -> Callable[[Sequence[Batch]], StoreReader]:
        return FrameStore.of_batches


class TestFiles(StoreReaderConformance):
    @pytest.fixture(params=["parquet", "csv"])
    def make_reader(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sequence[Batch]], StoreReader]:
        def make(batches: Sequence[Batch]) -> StoreReader:
            source = FrameStore.of_batches(batches)
            export_rows(source, tmp_path, window(0, 4320), fmt=request.param)
            return load_rows([tmp_path])

        return make
