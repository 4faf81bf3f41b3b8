"""What ``make demo`` and the end-to-end tests share: a real Airflow of their own, and the look back on a run."""
