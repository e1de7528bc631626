from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from headgate.connectors.kafka import consumers, reader
from headgate.connectors.kafka.reader import offsets, partitions, read_range
from headgate.connectors.kafka.reading import AHEAD, FEW_ROWS, read_ranges
from headgate.connectors.kafka.rows import COLUMNS, row_schema
from headgate.connectors.kafka.topics import admin_client, create_topic, grow_topic
from headgate.errors import DataLoss, InvalidInput, NotFound, Transient
from tests.support.producing import abort, commit, config_for, numbered, open_transaction, produce, values_of
from tests.support.services import MakeTopic

pytestmark = pytest.mark.kafka
BOTH = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])


class TestRows:
    def test_a_range_is_exactly_its_offsets_in_order(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic(2)
        produce(kafka_servers, topic, numbered(1000), partition=1)
        config = config_for(kafka_servers)
        for start, until in [(0, 1000), (0, 1), (999, 1000), (250, 750), (250, 251)]:
            batches = list(read_range(config, topic, 1, start, until))
            assert [o for b in batches for o in b.column("offset").to_pylist()] == list(range(start, until))
            assert values_of(batches) == numbered(until - start, start)
            assert {p for b in batches for p in b.column("partition").to_pylist()} == {1}

    def test_an_empty_range_gives_nothing_and_asks_nobody(self) -> None:
        assert list(read_range(config_for("127.0.0.1:1"), "nowhere", 0, 7, 7)) == []

    def test_a_range_that_cannot_be_is_refused_at_the_call(self) -> None:
        with pytest.raises(InvalidInput, match=r"\[5,4\)"):
            read_range(config_for("127.0.0.1:1"), "nowhere", 0, 5, 4)
        with pytest.raises(InvalidInput, match="'colour'"):
            read_range(config_for("127.0.0.1:1"), "nowhere", 0, 0, 1, columns=["colour"])

    def test_batches_have_at_most_max_rows(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, numbered(250))
        batches = list(read_range(config_for(kafka_servers), topic, 0, 0, 250, max_rows=100))
        assert [batch.num_rows for batch in batches] == [100, 100, 50]

    def test_rows_have_the_schema_of_sparks_source(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        headers = [("a", b"1"), ("a", None), ("é", b"")]
        produce(kafka_servers, topic, [b"v"], key=b"k", headers=headers, timestamp=1_600_000_000_123)
        produce(kafka_servers, topic, [None], key=b"k")
        produce(kafka_servers, topic, [b""])
        columns = (*COLUMNS, "headers")
        (batch,) = read_range(config_for(kafka_servers), topic, 0, 0, 3, columns=columns)
        assert batch.schema == row_schema(columns)
        assert row_schema().field("timestamp").type == pa.timestamp("us", tz="UTC")
        first, tombstone, empty = batch.to_pylist()
        assert first == {
            "key": b"k",
            "value": b"v",
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(2020, 9, 13, 12, 26, 40, 123000, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "é", "value": b""}],
        }
        assert (tombstone["key"], tombstone["value"], tombstone["headers"]) == (b"k", None, None)
        assert (empty["key"], empty["value"]) == (None, b"")

    def test_the_brokers_clock_is_told_apart(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
        produce(kafka_servers, topic, [b"v"], timestamp=1_600_000_000_123)
        (batch,) = read_range(config_for(kafka_servers), topic, 0, 0, 1)
        (row,) = batch.to_pylist()
        assert row["timestampType"] == 1
        assert row["timestamp"].year > 2020

    def test_only_the_columns_asked_for_are_there(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, [b"v"])
        (batch,) = read_range(config_for(kafka_servers), topic, 0, 0, 1, columns=["offset", "value"])
        assert batch.to_pylist() == [{"offset": 0, "value": b"v"}]


class TestHoles:
    """Offsets without a row: a range ends by position, wherever they lie."""

    @BOTH
    def test_a_range_may_end_in_a_control_record(
        self, kafka_servers: str, make_topic: MakeTopic, isolation: str
    ) -> None:
        topic = make_topic()
        config = config_for(kafka_servers, isolation)
        commit(kafka_servers, topic, numbered(5))
        assert offsets(config, topic) == {0: (0, 6)}
        assert values_of(list(read_range(config, topic, 0, 0, 6))) == numbered(5)
        assert list(read_range(config, topic, 0, 5, 6)) == []
        commit(kafka_servers, topic, numbered(3, 5))
        assert values_of(list(read_range(config, topic, 0, 0, 6))) == numbered(5)
        assert list(read_range(config, topic, 0, 5, 6)) == []
        assert values_of(list(read_range(config, topic, 0, 4, 10))) == numbered(4, 4)

    @BOTH
    def test_aborted_rows_are_seen_only_uncommitted(
        self, kafka_servers: str, make_topic: MakeTopic, isolation: str
    ) -> None:
        topic = make_topic()
        config = config_for(kafka_servers, isolation)
        commit(kafka_servers, topic, [b"kept"])
        abort(kafka_servers, topic, numbered(4))
        seen = numbered(4) if isolation == "read_uncommitted" else []
        for after in ([], [b"later"]):
            if after:
                produce(kafka_servers, topic, after)
            assert values_of(list(read_range(config, topic, 0, 0, 7))) == [b"kept", *seen]
            assert values_of(list(read_range(config, topic, 0, 2, 7))) == seen
            assert values_of(list(read_range(config, topic, 0, 3, 5))) == seen[1:3]

    def test_many_small_transactions_are_read_whole(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        for number in range(8):
            (commit if number % 2 else abort)(kafka_servers, topic, numbered(2, 2 * number))
        config = config_for(kafka_servers)
        assert offsets(config, topic) == {0: (0, 24)}
        every = [(number * 3 + at, b"row %d" % (number * 2 + at)) for number in range(1, 8, 2) for at in range(2)]
        for start in range(25):
            for until in range(start, 25, 4):
                rows = values_of(list(read_range(config, topic, 0, start, until)))
                assert rows == [value for offset, value in every if start <= offset < until], (start, until)

    def test_an_open_transaction_is_waited_for_and_is_no_loss(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        producer = open_transaction(kafka_servers)
        for value in numbered(3):
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
        config = config_for(kafka_servers)
        assert offsets(config, topic) == {0: (0, 0)}
        with pytest.raises(Transient, match=topic):
            list(read_range(config, topic, 0, 0, 3, deadline=1.5))
        ending = threading.Timer(1.0, producer.commit_transaction)
        ending.start()
        assert values_of(list(read_range(config, topic, 0, 0, 3))) == numbered(3)
        ending.join()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that ends too early is believed to have lost its end after a second."""
    monkeypatch.setattr(reader, "LOSS_SECONDS", 1.0)


@pytest.mark.usefixtures("soon")
class TestLoss:
    def test_a_broker_that_learns_the_end_of_the_log_later_has_lost_nothing(
        self, kafka_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After kill -9 of a broker its clients see for a while a log that ends before what it had told them."""
        monkeypatch.setattr(reader, "LOSS_SECONDS", 60.0)
        topic = make_topic()
        produce(kafka_servers, topic, numbered(4))
        later = threading.Timer(3.0, produce, [kafka_servers, topic, numbered(5, 4)])
        later.start()
        assert values_of(list(read_range(config_for(kafka_servers), topic, 0, 0, 9))) == numbered(9)
        later.join()

    def test_deleted_offsets_are_data_loss_that_names_them(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, numbered(10))
        (deleted,) = admin_delete(kafka_servers, topic, 6)
        assert deleted == 6
        config = config_for(kafka_servers)
        assert offsets(config, topic) == {0: (6, 10)}
        for start, until, lost in [(2, 10, (2, 6)), (0, 4, (0, 4)), (5, 6, (5, 6))]:
            with pytest.raises(DataLoss) as caught:
                list(read_range(config, topic, 0, start, until))
            assert (caught.value.detail["lost_from"], caught.value.detail["lost_until"]) == lost
            assert topic in str(caught.value)
            assert f"[{lost[0]},{lost[1]})" in str(caught.value)
        assert values_of(list(read_range(config, topic, 0, 6, 10))) == numbered(4, 6)

    @pytest.mark.parametrize(("start", "lost"), [(0, "[4,9)"), (4, "[4,9)"), (7, "[7,9)")])
    def test_a_log_that_ends_before_the_range_is_data_loss(
        self, kafka_servers: str, make_topic: MakeTopic, start: int, lost: str
    ) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, numbered(4))
        with pytest.raises(DataLoss) as caught:
            list(read_range(config_for(kafka_servers), topic, 0, start, 9))
        assert f"offsets {lost} of" in str(caught.value)

    def test_a_topic_that_is_gone_is_data_loss_for_a_range_and_not_found_for_a_question(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        config = config_for(kafka_servers)
        with pytest.raises(DataLoss, match=r"\[3,5\)"):
            list(read_range(config, "no-such-topic", 0, 3, 5))
        with pytest.raises(NotFound, match="no-such-topic"):
            partitions(config, "no-such-topic")
        with pytest.raises(NotFound, match="no-such-topic"):
            offsets(config, "no-such-topic")
        topic = make_topic(1)
        with pytest.raises(DataLoss, match="partition 4"):
            list(read_range(config, topic, 4, 0, 1))

    def test_a_topic_made_anew_with_fewer_rows_is_data_loss(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, numbered(8))
        config = config_for(kafka_servers)
        assert values_of(list(read_range(config, topic, 0, 0, 4))) == numbered(4)
        client = admin_client(kafka_servers)
        client.delete_topics([topic], operation_timeout=30)[topic].result(30)
        create_anew(kafka_servers, topic)
        produce(kafka_servers, topic, numbered(2))
        with pytest.raises(DataLoss, match=r"\[4,8\)"):
            list(read_range(config, topic, 0, 4, 8))


class TestConsumers:
    def test_readers_at_the_same_time_do_not_disturb_each_other(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(2)
        for partition in (0, 1):
            produce(kafka_servers, topic, numbered(300, 1000 * partition), partition=partition)
        config = config_for(kafka_servers)
        readers = [read_range(config, topic, partition, 0, 300, max_rows=50) for partition in (0, 1)]
        pairs = list(zip(*readers, strict=True))
        for partition in (0, 1):
            assert values_of([pair[partition] for pair in pairs]) == numbered(300, 1000 * partition)

    def test_a_reader_that_stops_early_leaves_a_consumer_that_works(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(2)
        produce(kafka_servers, topic, numbered(300), partition=0)
        produce(kafka_servers, topic, [b"other"], partition=1)
        config = config_for(kafka_servers)
        for _ in range(3):
            reader = read_range(config, topic, 0, 0, 300, max_rows=10)
            assert next(reader).num_rows == 10
            reader.close()
            assert values_of(list(read_range(config, topic, 1, 0, 1))) == [b"other"]

    def test_several_ranges_come_one_after_the_other_with_their_holes(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(3)
        commit(kafka_servers, topic, numbered(5))  # partition 0, whose offset 5 has no row
        produce(kafka_servers, topic, numbered(2 * FEW_ROWS, 10), partition=1)
        produce(kafka_servers, topic, numbered(9, 100), partition=2)
        places = [(0, 2, 6), (1, 0, 2 * FEW_ROWS), (2, 4, 4), (2, 0, 9), (0, 5, 6), (1, 7, 8), (0, 0, 1)]
        expected = [*numbered(3, 2), *numbered(2 * FEW_ROWS, 10), *numbered(9, 100), *numbered(1, 17), *numbered(1)]
        for _ in range(2):
            read = read_ranges(config_for(kafka_servers), [(topic, *place) for place in places], columns=COLUMNS)
            assert values_of(list(read)) == expected

    @pytest.mark.usefixtures("soon")
    def test_a_lost_range_is_told_after_the_rows_of_the_ranges_before_it(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(2)
        produce(kafka_servers, topic, numbered(6), partition=0)
        produce(kafka_servers, topic, numbered(3), partition=1)
        read = read_ranges(config_for(kafka_servers), [(topic, 0, 0, 6), (topic, 1, 0, 4)], columns=COLUMNS)
        assert values_of([next(read)]) == numbered(6)
        with pytest.raises(DataLoss, match=r"\[3,4\) of .* partition 1"):
            list(read)

    def test_who_stops_early_gives_all_consumers_back(self, kafka_servers: str, make_topic: MakeTopic) -> None:
        topic = make_topic(AHEAD + 3)
        for partition in range(AHEAD + 3):
            produce(kafka_servers, topic, numbered(5, partition), partition=partition)
        config = config_for(kafka_servers, **{"kafka.client.id": topic})
        places = [(topic, partition, 0, 5) for partition in range(AHEAD + 3)]
        for _ in range(3):
            read = read_ranges(config, places, columns=COLUMNS)
            assert values_of([next(read)]) == numbered(5)
            read.close()
            idle = [
                one for (_, known), all_ in consumers._idle.items() if topic in str(known.librdkafka()) for one in all_
            ]
            assert len(idle) == 1 + AHEAD
            assert not any(one.consumer.assignment() for one in idle)

    def test_a_forked_child_reads_with_its_own_consumer_and_ends(
        self, kafka_servers: str, make_topic: MakeTopic
    ) -> None:
        topic = make_topic()
        produce(kafka_servers, topic, numbered(20))
        # A process of its own: the child must also end the ordinary way, through the interpreter's end.
        script = f"""
import os, sys
from headgate.connectors.kafka import consumers
from headgate.connectors.kafka.options import ConsumerConfig
from headgate.connectors.kafka.reader import read_range
config = ConsumerConfig.from_spark({{"kafka.bootstrap.servers": {kafka_servers!r}}})
rows = lambda: sum(batch.num_rows for batch in read_range(config, {topic!r}, 0, 0, 20))
assert rows() == 20
child = os.fork()
assert rows() == 20
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert rows() == 20
assert [pid for pid, _ in consumers._idle] == [os.getpid()]
"""
        done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_a_value_that_librdkafka_refuses_is_named_without_the_value(self) -> None:
        config = config_for("127.0.0.1:1", **{"kafka.fetch.min.bytes": "hunter2"})
        with pytest.raises(InvalidInput, match=r"fetch\.min\.bytes") as caught:
            list(read_range(config, "t", 0, 0, 1))
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_offsets_and_partitions_follow_a_topic_that_grows(kafka_servers: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    produce(kafka_servers, topic, numbered(3))
    config = config_for(kafka_servers)
    assert partitions(config, topic) == [0]
    grow_topic(kafka_servers, topic, 3)
    produce(kafka_servers, topic, numbered(2), partition=2)
    assert partitions(config, topic) == [0, 1, 2]
    assert offsets(config, topic) == {0: (0, 3), 1: (0, 0), 2: (0, 2)}
    assert values_of(list(read_range(config, topic, 2, 0, 2))) == numbered(2)


def admin_delete(servers: str, topic: str, before: int) -> list[int]:
    """Delete the offsets below `before`; the new first offsets."""
    client = admin_client(servers)
    futures = client.delete_records([TopicPartition(topic, 0, before)])
    return [future.result(30).low_watermark for future in futures.values()]


def create_anew(servers: str, topic: str) -> None:
    """Deleting goes on for a moment after it is answered."""
    for _ in range(100):
        try:
            create_topic(servers, topic)
            return
        except InvalidInput:
            threading.Event().wait(0.1)
    raise AssertionError(f"{topic} stays")
