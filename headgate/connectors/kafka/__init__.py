"""Kafka: a local broker, topics, consumer configuration, and reading offset ranges straight into Arrow.

Importing this package loads no native code; the modules that talk to Kafka do.
"""
