"""A wish for another size of a training: when it is due, how far it has come, what Airflow says meanwhile."""
