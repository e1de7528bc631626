# Submits the job; a cluster whose Python is 3.11 or newer, with the wheel installed by an initialization action.
gcloud dataproc jobs submit pyspark gs://jobs/append_logs.py \
    --cluster streams --region europe-west4 --max-failures-per-hour 10 \
    --properties '^#^spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1#spark.scheduler.mode=FAIR' \
    -- \
    --servers kafka:9092 --topic logs --table s3://lake/logs --spark-checkpoint s3a://lake/state/logs
