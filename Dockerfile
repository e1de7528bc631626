# headgate with its Spark: `headgate ingest` and every other command, on one machine.
# bookworm: the last Debian with Java 17.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

ENV HEADGATE_CACHE=/opt/headgate PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /src

# What builds comes under the constraints as well; pyspark comes as source only.
COPY constraints.txt ./
RUN pip install -c constraints.txt hatchling setuptools wheel

COPY pyproject.toml LICENSE ./
COPY headgate headgate
RUN pip install -c constraints.txt --no-build-isolation ".[kafka,spark,s3,metrics]"

# What Spark needs to read Kafka; JARS="spark s3a" also lets its checkpoint lie on S3 (docs/operations/s3.md).
ARG JARS=spark
RUN headgate jars fetch ${JARS}

RUN useradd --create-home headgate && mkdir /state && chown headgate /state
USER headgate
WORKDIR /home/headgate
ENTRYPOINT ["headgate"]
