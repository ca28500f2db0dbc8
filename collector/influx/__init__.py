"""InfluxDB as the store of record: the embedded store is its spool, a shipper feeds it, reads are merged.

Written through `/api/v2/write` and read by InfluxQL as CSV, which 1.8+, 2.x and 3.x answer alike.
"""
